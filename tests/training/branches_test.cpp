#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;
using Names = std::vector<std::string>;

std::vector<int> steps_in(const fs::path& log) {
  std::vector<int> steps;
  for (const Json& line : read_jsonl(log)) steps.push_back(line["step"]);
  return steps;
}

std::vector<int> up_to(int end) {
  std::vector<int> steps;
  for (int step = 0; step < end; ++step) steps.push_back(step);
  return steps;
}

// Eight steps, a checkpoint every two.
struct SavedRun : RunDir {
  SavedRun() { CHECK(err_of({}).find("resumed") == std::string::npos); }
  std::string err_of(Overrides overrides) const {
    Overrides all{"step_scheduler.ckpt_every_steps=2", "step_scheduler.val_every_steps=null",
                  "step_scheduler.max_steps=8", "lr_scheduler=null"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const ProcessResult run = train(all);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return run.err;
  }
  fs::path at(const std::string& name) const { return *this / "straight" / name; }
};

}  // namespace

TEST_CASE("branches: a run taken back leaves logs and checkpoints alone until it has saved") {
  const SavedRun dir;
  const auto contents_but_history = [&] {
    auto files = contents(dir / "straight");
    files.erase("history.jsonl");  // which every start adds to
    return files;
  };
  const auto before = contents_but_history();
  // Without checkpoints it never saves: what a kill before the first one leaves.
  const std::string err = dir.err_of(
      {"checkpoint.restore_from=epoch_0_step_3", "checkpoint.enabled=false", "step_scheduler.max_steps=6"});
  CHECK(err.find("logs to straight/training.jsonl.branch_5") != std::string::npos);
  CHECK(steps_in(dir.at("training.jsonl.branch_5")) == up_to(6));
  auto after = contents_but_history();
  std::erase_if(after, [](const auto& file) { return file.first.ends_with(".jsonl.branch_5"); });
  CHECK(after == before);

  // The old branch goes on as if nothing had been.
  dir.err_of({"step_scheduler.max_steps=10"});
  CHECK(steps_in(dir.at("training.jsonl")) == up_to(10));
  CHECK_FALSE(fs::exists(dir.at("training.jsonl.branch_5")));
  CHECK_FALSE(fs::exists(dir.at("abandoned")));

  // And when a run that was taken back saves, the old branch is abandoned with its log.
  dir.err_of({"checkpoint.restore_from=epoch_0_step_3", "step_scheduler.max_steps=6", "optimizer.lr=0.02"});
  CHECK(steps_in(dir.at("training.jsonl")) == up_to(6));
  CHECK(steps_in(dir.at("abandoned/training.jsonl")) == up_to(10));
  CHECK(fs::exists(dir.at("abandoned/epoch_1_step_9")));
  CHECK_FALSE(fs::exists(dir.at("training.jsonl.branch_6")));
}

TEST_CASE("branches: after a kill between publishing and LATEST the run goes on from the newest") {
  const SavedRun dir;
  const fs::path latest = fs::read_symlink(dir.at("LATEST"));
  REQUIRE(latest == "epoch_1_step_7");
  fs::remove(dir.at("LATEST"));
  fs::create_directory_symlink("epoch_0_step_5", dir.at("LATEST"));
  const std::string err = dir.err_of({"step_scheduler.max_steps=10"});
  CHECK(err.find("resumed from straight/epoch_1_step_7, which has 8 steps done") != std::string::npos);
  CHECK_FALSE(fs::exists(dir.at("abandoned")));
  CHECK(steps_in(dir.at("training.jsonl")) == up_to(10));
  // The same with the last rename not done: a whole checkpoint under its temporary name.
  fs::rename(dir.at("epoch_1_step_9"), dir.at(".epoch_1_step_9.77.0.tmp"));
  fs::remove(dir.at("LATEST"));
  fs::create_directory_symlink("epoch_1_step_7", dir.at("LATEST"));
  fs::create_directories(dir.at(".epoch_1_step_11.77.1.tmp/model"));
  spit(dir.at(".training.jsonl.77.2.tmp"), "x");
  const std::string again = dir.err_of({"step_scheduler.max_steps=12"});
  CHECK(again.find("resumed from straight/epoch_1_step_9, which has 10 steps done") != std::string::npos);
  for (const std::string& name : names_in(dir / "straight")) CHECK_FALSE(name.starts_with("."));
}

TEST_CASE("branches: a damaged newest checkpoint is named, and the way back to the one before works") {
  const SavedRun dir;
  const fs::path weights = dir.at("epoch_1_step_7/model/model.safetensors");
  std::string bytes = slurp(weights);
  bytes[bytes.size() / 2] ^= 0x10;
  spit(weights, bytes);
  const ProcessResult refused = dir.train({"lr_scheduler=null"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("epoch_1_step_7/model/model.safetensors: damaged") != std::string::npos);
  const std::string way = "checkpoint.restore_from=epoch_0_step_5";
  REQUIRE(refused.err.find("--set " + way) != std::string::npos);
  CHECK(dir.err_of({way}).find("resumed from") != std::string::npos);
  CHECK(steps_in(dir.at("training.jsonl")) == up_to(8));
  CHECK(fs::exists(dir.at("abandoned/epoch_1_step_7")));
}

TEST_CASE("branches: what a recipe changes against that of the checkpoint is said, key by key") {
  const SavedRun dir;
  const std::string err = dir.err_of({"step_scheduler.max_steps=10", "optimizer.lr=0.5"});
  CHECK(err.find("optimizer.lr: 0.01 -> 0.5") != std::string::npos);
  CHECK(err.find("step_scheduler.max_steps: 8 -> 10") != std::string::npos);
  std::size_t lines = 0;
  for (std::size_t at = err.find("the recipe has changed"); at != err.npos;
       at = err.find("the recipe has changed", at + 1))
    ++lines;
  CHECK(lines == 2);
}

TEST_CASE("branches: text out of variables is in no file, and another value of them is said") {
  ::setenv("NEMOCUBE_TEST_SECRET", "samples", 1);
  const SavedRun dir;
  fs::create_directory_symlink("samples", dir / "hunter2");
  const auto run = [&](const char* value, const Overrides& more) {
    ::setenv("NEMOCUBE_TEST_SECRET", value, 1);
    Overrides all{"dataset.dataset_name=${oc.env:NEMOCUBE_TEST_SECRET}/train.json",
                  "checkpoint.checkpoint_dir=new"};
    all.insert(all.end(), more.begin(), more.end());
    const std::string err = dir.err_of(all);
    ::unsetenv("NEMOCUBE_TEST_SECRET");
    return err.substr(0, err.find("\nlogs: "));  // the commands at the end repeat --set
  };
  run("hunter2", {"step_scheduler.max_steps=2"});
  for (const auto& entry : fs::recursive_directory_iterator(dir / "new"))
    if (entry.is_regular_file())
      CHECK_MESSAGE(slurp(entry.path()).find("hunter2") == std::string::npos, entry.path());
  const std::string config = slurp(dir / "new/LATEST/config.yaml"),
                    written = "${oc.env:NEMOCUBE_TEST_SECRET}";
  CHECK(config.find(cat("dataset_name: \"", written, "/train.json\"")) != std::string::npos);
  const std::string same = run("hunter2", {"step_scheduler.max_steps=3"});
  CHECK(same.find("step_scheduler.max_steps: 2 -> 3") != std::string::npos);
  CHECK(same.find("dataset") == std::string::npos);
  const std::string other = run("samples", {"step_scheduler.max_steps=4"});
  CHECK(other.find(cat("has changed since this checkpoint: ", written,
                       "/train.json: another value -> that of now")) != std::string::npos);
  // The checkpoint of a program that wrote values.
  std::string old = config;
  const std::string mine = cat("\"", written, "/train.json\"");
  old.replace(old.find(mine), mine.size(), "\"hunter2/train.json\"");
  old.erase(old.find("# digest"));
  const fs::path last = fs::canonical(dir / "new/LATEST");
  spit(last / "config.yaml", old);
  fs::remove(last / "checksums.json");
  Json state = read_json_file(last / "state.json");
  state.erase("origin");
  spit(last / "state.json", dump_json(state));
  CHECK(run("hunter2", {"step_scheduler.max_steps=5"}).find("dataset") == std::string::npos);
}

TEST_CASE("branches: checkpoints and logs name the program's version") {
  const SavedRun dir;
  const std::string version = run_process({program(), "--version"}).out;
  const Json state = read_json_file(dir.at("epoch_0_step_1/state.json"));
  const std::string program = state.at("origin").at("program");
  CHECK(version.find(program) != std::string::npos);
  CHECK(read_jsonl(dir.at("training.jsonl")).at(0).at("version") == program);
}
