#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/safetensors/reader.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

std::vector<std::string> in_shell(const std::string& script, const std::vector<std::string>& overrides) {
  std::vector<std::string> command{"sh", "-c", script};
  const auto train = RunDir::train_command(overrides);
  command.insert(command.end(), train.begin(), train.end());
  return command;
}

void check_saved(const RunDir& dir) {
  const auto steps = read_jsonl(dir / "straight" / "training.jsonl");
  REQUIRE(!steps.empty());
  CHECK(steps.size() < 100000);
  const std::string latest = fs::canonical(dir / "straight" / "LATEST").filename();
  CHECK(latest.ends_with(cat("_step_", steps.size() - 1)));
}

}  // namespace

TEST_CASE("ending: a terminal that closes ends the run with a checkpoint; under nohup it goes on") {
  const RunDir dir;
  Process running(RunDir::train_command(endless), dir.path());
  wait_for_steps(dir);
  for (int i = 0; i < 3; ++i) running.signal(SIGHUP);  // a shell and the kernel both send it
  const ProcessResult ended = running.wait();
  CAPTURE(ended.err);
  CHECK(ended.exit_code == 128 + SIGHUP);
  CHECK(ended.err.find(cat("to go on: ", program(),
                           " train recipe.yaml --set step_scheduler.max_steps=100000")) != std::string::npos);
  CHECK(ended.err.find("stopped by signal 1 ") != std::string::npos);
  check_saved(dir);

  const RunDir other;
  Process kept(in_shell("trap '' HUP; exec \"$0\" \"$@\"", endless), other.path());
  wait_for_steps(other);
  kept.signal(SIGHUP);
  kept.signal(SIGTERM);
  CHECK(kept.wait().exit_code == 128 + SIGTERM);
}

TEST_CASE("ending: a reader of standard error that goes away ends the run with a checkpoint") {
  const RunDir dir;
  const ProcessResult run =
      run_process(in_shell("{ \"$0\" \"$@\"; echo $? > code; } 2>&1 | head -n 1", endless), dir.path());
  CAPTURE(run.err);
  CHECK(slurp(dir / "code") == cat(128 + SIGPIPE, "\n"));
  check_saved(dir);
}

TEST_CASE("ending: the last line sums the run up; at log level warning a healthy run says nothing") {
  const RunDir dir;
  const std::vector<std::string> two{"step_scheduler.max_steps=2", "lr_scheduler=null"};
  const ProcessResult run = dir.train(two);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(run.err.find("step 0 of 2 (50 %)  epoch 0  ") != std::string::npos);
  CHECK(run.err.find("step 1 of 2 (100 %)  epoch 0  0s left  loss ") != std::string::npos);
  const std::string last = run.err.substr(run.err.rfind('\n', run.err.size() - 2) + 1);
  CHECK(last.starts_with("done: 2 steps in "));
  CHECK(last.ends_with(" at step 1, 0 skipped steps; model in straight/epoch_0_step_1/model\n"));
  const std::string parameters = run.err.substr(run.err.find("training "));
  const SafetensorsFile weights(dir / "straight" / "LATEST" / "model" / "model.safetensors");
  std::int64_t trained = 0;
  for (const StoredTensor& t : weights.tensors())
    if (!t.name.ends_with("e_score_correction_bias")) trained += t.bytes() / 4;
  CHECK(parameters.starts_with(cat("training ", trained, " parameters in f32: ")));

  fs::remove_all(dir / "straight");
  std::vector<std::string> quiet = RunDir::train_command(two);
  quiet.insert(quiet.begin() + 1, {"--log-level", "warning"});
  const ProcessResult silent = run_process(quiet, dir.path());
  CHECK(silent.exit_code == 0);
  CHECK(silent.err.empty());
}
