#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>

#include "tests/parallel/rank_runs.h"
#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"
#include "train/checkpoint/checksums.h"

using namespace nemocube;
using namespace nemocube::testing;

// Ranks that are killed at a file operation of saving, or whose disk is full.

namespace {

namespace fs = std::filesystem;

constexpr int ranks = 4;

// Three steps with a checkpoint each, by ranks that all write parts of every one.
Words command(const Words& more) {
  return RunDir::train_command(plus(
      {"step_scheduler.max_steps=3", "step_scheduler.local_batch_size=1", "step_scheduler.ckpt_every_steps=1",
       "lr_scheduler=null", "packed_sequence=null", "dataset.limit_dataset_samples=16",
       "validation_dataset=null", "distributed.ep_size=2", "checkpoint.max_recent_checkpoints=2"},
      more));
}

// `faults`: environment variables of tests/support/preload/die_at.cpp.
ProcessResult run_with(const Words& faults, const fs::path& dir, const Words& more) {
  const Words words{"/usr/bin/env", "LD_PRELOAD=" + preload_library("die_at"),
                    // The sanitizer's library comes after the preloaded one.
                    cat("ASAN_OPTIONS=verify_asan_link_order=0:",
                        std::getenv("ASAN_OPTIONS") ? std::getenv("ASAN_OPTIONS") : "")};
  return run_process(mpirun(ranks, plus(plus(words, faults), command(more))), dir);
}

Words checkpoints_in(const fs::path& runs) {
  if (!fs::exists(runs)) return {};
  Words names = names_in(runs);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("epoch_"); });
  return names;
}

void check_intact(const fs::path& runs) {
  for (const std::string& name : checkpoints_in(runs)) {
    CAPTURE(name);
    const auto sums = read_checksums(runs / name);
    REQUIRE(sums);
    CHECK(sums->size() == files_below(runs / name).size() - 1);
    CHECK_NOTHROW(check_sums(runs / name, *sums));
  }
  if (fs::is_symlink(runs / "LATEST")) CHECK(fs::exists(runs / "LATEST" / "state.json"));
}

// Kills a rank at every `stride`-th point from `first` on, until it is no longer killed, and resumes the run.
// Returns how often it was killed.
int kill_and_resume(int rank, int first, int stride, const RunDir& dir, const fs::path& want,
                    const Words& settings) {
  const fs::path runs = dir / "straight";
  int kills = 0;
  for (int point = first;; point += stride) {
    CAPTURE(rank);
    CAPTURE(point);
    fs::remove_all(runs);
    const ProcessResult killed =
        run_with({cat("NEMOCUBE_DIE_AT=", point), cat("NEMOCUBE_DIE_RANK=", rank), "NEMOCUBE_DIE_STAGED=1"},
                 dir.path(), settings);
    CAPTURE(killed.err);
    check_intact(runs);
    if (killed.exit_code == 0) return kills;
    CHECK(killed.exit_code == 128 + SIGKILL);
    ++kills;
    const ProcessResult resumed = run_process(mpirun(ranks, command(settings)), dir.path());
    CAPTURE(resumed.err);
    REQUIRE(resumed.exit_code == 0);
    check_intact(runs);
    REQUIRE(checkpoints_in(runs) == checkpoints_in(want));
    for (const std::string& name : checkpoints_in(runs)) CHECK(differences(runs / name, want / name) == "");
  }
}

void kill_everywhere(const Words& settings) {
  const bool all = std::getenv("NEMOCUBE_KILLS") != nullptr;  // at each point, not at some
  const RunDir dir;
  const fs::path want = dir / "want";
  const ProcessResult straight =
      run_process(mpirun(ranks, command(plus(settings, {"checkpoint.checkpoint_dir=want"}))), dir.path());
  CAPTURE(straight.err);
  REQUIRE(straight.exit_code == 0);
  // Rank 0 makes, publishes and removes; the others write.
  CHECK(kill_and_resume(0, all ? 1 : 4, all ? 1 : 29, dir, want, settings) >= (all ? 100 : 3));
  CHECK(kill_and_resume(3, all ? 1 : 3, all ? 1 : 17, dir, want, settings) >= (all ? 20 : 1));
}

}  // namespace

TEST_CASE("kill points of ranks: wherever one is killed, no checkpoint is damaged, and the run goes on") {
  kill_everywhere({});
}

TEST_CASE("kill points of ranks: the same while checkpoints are written beside training") {
  kill_everywhere({"checkpoint.is_async=true"});
}

TEST_CASE("full disk: a rank that cannot write a checkpoint ends the run, and what was saved stays") {
  for (const Words& settings : {Words{}, Words{"checkpoint.is_async=true"}})
    for (const char* file : {"*model.safetensors*", "optim/*optimizer-00003-of-00004*", "optim/*index.json*",
                             "*checksums.json*"}) {
      CAPTURE(settings.size());
      CAPTURE(std::string(file));
      const RunDir dir;
      const fs::path runs = dir / "straight";
      const ProcessResult full =
          run_with({cat("NEMOCUBE_FULL_IN=*/.epoch_0_step_1.*.tmp/", file)}, dir.path(), settings);
      CAPTURE(full.err);
      CHECK(full.exit_code == 2);
      CHECK(full.err.find("error: checkpoint straight/epoch_0_step_1: ") != std::string::npos);
      CHECK(full.err.find("No space left on device") != std::string::npos);
      CHECK(checkpoints_in(runs) == Words{"epoch_0_step_0"});
      check_intact(runs);
      const ProcessResult resumed = run_process(mpirun(ranks, command(settings)), dir.path());
      CAPTURE(resumed.err);
      CHECK(resumed.exit_code == 0);
      CHECK(resumed.err.find("resumed from straight/epoch_0_step_0") != std::string::npos);
      check_intact(runs);
      CHECK(checkpoints_in(runs) == Words{"epoch_0_step_1", "epoch_0_step_2"});
      for (const std::string& name : names_in(runs)) CHECK_FALSE(name.ends_with(".tmp"));
    }
}
