#include <doctest/doctest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// Four steps with a checkpoint each.
Words command(const Words& more = {}) {
  Words overrides{"step_scheduler.max_steps=4",
                  "step_scheduler.ckpt_every_steps=1",
                  "step_scheduler.val_every_steps=1",
                  "lr_scheduler=null",
                  "packed_sequence=null",
                  "dataset.limit_dataset_samples=16",
                  "validation_dataset_more={_target_: squad, dataset_name: samples/validation.json, "
                  "limit_dataset_samples: 1}"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return RunDir::train_command(overrides);
}

// Killed just before the call number `point` of those that tests/support/preload/die_at.cpp counts.
ProcessResult die_at(int point, const fs::path& dir, const Words& more = {}) {
  Words words{"/usr/bin/env", "LD_PRELOAD=" + preload_library("die_at"), cat("NEMOCUBE_DIE_AT=", point),
              // The sanitizer's library comes after the preloaded one.
              cat("ASAN_OPTIONS=verify_asan_link_order=0:",
                  std::getenv("ASAN_OPTIONS") ? std::getenv("ASAN_OPTIONS") : "")};
  for (const std::string& word : command(more)) words.push_back(word);
  return run_process(words, dir);
}

// Everything in a checkpoint directory but what depends on clocks, and on how often a run was killed (its
// history): names, links, checkpoints, logs.
std::map<std::string, std::string> state_of(const fs::path& runs) {
  std::map<std::string, std::string> state;
  for (const std::string& name : names_in(runs)) {
    if (name == "history.jsonl") continue;
    const fs::path path = runs / name;
    if (fs::is_symlink(path))
      state[name] = "-> " + fs::read_symlink(path).string();
    else if (fs::is_regular_file(path))
      for (const std::string& line : repeatable(path)) state[name] += line + "\n";
    else
      for (const auto& [file, bytes] : contents(path)) state[name + "/" + file] = bytes;
  }
  for (const auto& entry : fs::directory_iterator(runs))
    if (const fs::path sums = entry.path() / "checksums.json"; fs::exists(sums) && !entry.is_symlink()) {
      const Json document = read_json_file(sums);
      for (const auto& [file, sum] : document.at("crc32c").items())
        if (file != "config.yaml" && file != "state.json")
          state[entry.path().filename().string() + " sum of " + file] = dump_json(sum);
    }
  return state;
}

// Names of what differs.
std::string compared(const std::map<std::string, std::string>& a,
                     const std::map<std::string, std::string>& b) {
  std::string names;
  for (const auto& [name, text] : a)
    if (const auto other = b.find(name); other == b.end() || other->second != text) names += name + "\n";
  for (const auto& [name, text] : b)
    if (!a.contains(name)) names += name + "\n";
  return names;
}

// Runs once without a kill, then kills a run at each point, one after another, and resumes it.
void check_all_points(const Words& settings, const std::string& best, const Words& kept) {
  const RunDir dir;
  REQUIRE(run_process(command(settings), dir.path()).exit_code == 0);
  const fs::path runs = dir / "straight";
  const auto want = state_of(runs);
  REQUIRE(fs::read_symlink(runs / "LOWEST_VAL") == best);
  Words checkpoints = names_in(runs);
  std::erase_if(checkpoints, [](const std::string& name) { return !name.starts_with("epoch_"); });
  REQUIRE(checkpoints == kept);
  int point = 1;
  for (bool killed = true; killed; ++point) {
    CAPTURE(point);
    fs::remove_all(runs);
    const ProcessResult first = die_at(point, dir.path(), settings);
    killed = first.exit_code == 128 + SIGKILL;
    CAPTURE(first.err);
    if (!killed) REQUIRE(first.exit_code == 0);
    const ProcessResult resumed = run_process(command(settings), dir.path());
    CAPTURE(resumed.err);
    REQUIRE(resumed.exit_code == 0);
    auto after = state_of(runs);
    // Logs of a run that was killed before its first checkpoint was complete are kept under these names.
    std::erase_if(after, [](const auto& e) { return e.first.ends_with(".jsonl.1"); });
    CHECK(compared(after, want) == "");
  }
  CHECK(point > 40);
}

}  // namespace

TEST_CASE("kill points: wherever a kill falls, links and kept checkpoints are right after resuming") {
  // The last checkpoint is the best one. The one that was the best before is kept until the next save.
  check_all_points({"optimizer.lr=3", "checkpoint.max_recent_checkpoints=2"}, "epoch_0_step_3",
                   {"epoch_0_step_0", "epoch_0_step_2", "epoch_0_step_3"});
}

TEST_CASE("kill points: the same where each checkpoint but the last is the best so far") {
  check_all_points({"optimizer.lr=0.1", "checkpoint.max_recent_checkpoints=1"}, "epoch_0_step_2",
                   {"epoch_0_step_2", "epoch_0_step_3"});
}

TEST_CASE("kill points: the same while checkpoints are written beside training") {
  check_all_points({"optimizer.lr=3", "checkpoint.max_recent_checkpoints=2", "checkpoint.is_async=true"},
                   "epoch_0_step_3", {"epoch_0_step_0", "epoch_0_step_2", "epoch_0_step_3"});
}

TEST_CASE("kill points: a run that goes back leaves the old branch or the new one, never a mixture") {
  const RunDir dir;
  const Words settings{"optimizer.lr=0.1"}, back{"optimizer.lr=3", "checkpoint.restore_from=epoch_0_step_1"};
  const fs::path runs = dir / "straight", before = dir / "before";
  REQUIRE(run_process(command(settings), dir.path()).exit_code == 0);
  fs::copy(runs, before, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const auto old_branch = state_of(runs);
  REQUIRE(run_process(command(back), dir.path()).exit_code == 0);
  const auto new_branch = state_of(runs);
  REQUIRE(fs::read_symlink(runs / "LOWEST_VAL") == "epoch_0_step_1");
  int point = 1, olds = 0;
  for (bool killed = true; killed; ++point) {
    CAPTURE(point);
    fs::remove_all(runs);
    fs::copy(before, runs, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const ProcessResult first = die_at(point, dir.path(), back);
    killed = first.exit_code == 128 + SIGKILL;
    CAPTURE(first.err);
    const ProcessResult resumed = run_process(command({"optimizer.lr=3"}), dir.path());
    CAPTURE(resumed.err);
    REQUIRE(resumed.exit_code == 0);
    auto after = state_of(runs);
    std::erase_if(after, [](const auto& e) { return e.first.find(".branch_") != std::string::npos; });
    const bool old = compared(after, old_branch) == "";
    olds += old;
    if (!old) CHECK(compared(after, new_branch) == "");
  }
  CHECK(olds > 3);
  CHECK(point - olds > 15);
}
