#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

/// Validations every second step, whose loss rises from the first one on: the learning rate is far too high.
/// Checkpoints after steps 4 and 9 are validated as well.
const Words stopping{"early_stopping.patience=3",
                     "step_scheduler.val_every_steps=2",
                     "step_scheduler.max_steps=24",
                     "step_scheduler.num_epochs=4",
                     "optimizer.lr=1.0",
                     "lr_scheduler=null"};

/// The number of validations after which a run ends, by the losses of a run that does not.
std::size_t end_of(const std::vector<double>& losses, double min_delta, std::size_t patience) {
  double best = losses.at(0);
  std::size_t waited = 0;
  for (std::size_t i = 1; i < losses.size(); ++i) {
    waited = losses[i] < best - min_delta ? 0 : waited + 1;
    if (waited == 0) best = losses[i];
    if (waited == patience) return i + 1;
  }
  FAIL("the losses of the test improve too often");
  return 0;
}

std::int64_t last_step_of(const fs::path& run) {
  return read_jsonl(run / "training.jsonl").back().at("step");
}

}  // namespace

TEST_CASE(
    "early stopping: a run ends when its validation loss has not fallen, with a checkpoint, and is "
    "finished") {
  const RunDir dir;
  const ProcessResult whole =
      dir.train(plus(stopping, {"early_stopping=null", "checkpoint.checkpoint_dir=whole"}));
  CAPTURE(whole.err);
  REQUIRE(whole.exit_code == 0);
  const std::vector<double> losses = logged(dir / "whole" / "validation.jsonl", "val_loss");
  const std::size_t count = end_of(losses, 0, 3);
  REQUIRE(count < losses.size());
  const std::int64_t step = read_jsonl(dir / "whole" / "validation.jsonl")[count - 1].at("step");

  const ProcessResult early = dir.train(stopping);
  CAPTURE(early.err);
  REQUIRE(early.exit_code == 0);
  const fs::path run = dir / "straight";
  CHECK(last_step_of(run) == step);
  auto wanted = repeatable(dir / "whole" / "training.jsonl");
  wanted.resize(static_cast<std::size_t>(step) + 1);
  CHECK(repeatable(run / "training.jsonl") == wanted);
  CHECK(logged(run / "validation.jsonl", "val_loss") ==
        std::vector(losses.begin(), losses.begin() + static_cast<std::ptrdiff_t>(count)));
  // The checkpoint is that of the last step, as at the end of any run.
  const fs::path latest = fs::canonical(run / "LATEST");
  CHECK(latest.filename().string().ends_with(cat("_step_", step)));
  CHECK(read_json_file(latest / "losses.json").at("default") == losses[count - 1]);
  const std::string reason = "the validation loss of 3 validations in a row was not below ";
  const std::string last = early.err.substr(early.err.rfind('\n', early.err.size() - 2) + 1);
  CHECK(last.starts_with(cat("done: ", step + 1, " steps of 24 (early stopping: ", reason)));
  CHECK(early.err.find("to go on") == std::string::npos);
  const Json end = read_jsonl(run / "history.jsonl").back();
  CHECK(end.at("event") == "end");
  CHECK(end.at("signal") == 0);
  CHECK(end.at("early_stopping").get<std::string>().starts_with(reason));
  CHECK(last == end.at("text").get<std::string>() + "\n");
  const ProcessResult report = run_process({program(), "report", "straight"}, dir.path());
  CHECK(report.exit_code == 0);
  CHECK(slurp(run / "report.html").find(cat("finished after ", step + 1, " steps")) != std::string::npos);

  // Started again it has nothing to do, and touches nothing.
  const auto history = slurp(run / "history.jsonl"), training = slurp(run / "training.jsonl");
  const ProcessResult again = dir.train(stopping);
  CAPTURE(again.err);
  CHECK(again.exit_code == 0);
  CHECK(again.err.find(cat("nothing to train after step ", step, ", by early_stopping: ", reason)) !=
        std::string::npos);
  CHECK(again.err.find(cat("done: ", step + 1, " steps of 24 (early stopping: ")) != std::string::npos);
  CHECK(slurp(run / "history.jsonl") == history);
  CHECK(slurp(run / "training.jsonl") == training);

  // With more patience it goes on, as the run that was never stopped.
  const ProcessResult patient = dir.train(plus(stopping, {"early_stopping.patience=100"}));
  CAPTURE(patient.err);
  CHECK(patient.exit_code == 0);
  CHECK(repeatable(run / "training.jsonl") == repeatable(dir / "whole" / "training.jsonl"));
}

TEST_CASE("early stopping: a resumed run counts on, wherever it was interrupted") {
  const RunDir dir;
  const ProcessResult straight = dir.train(stopping);
  CAPTURE(straight.err);
  REQUIRE(straight.exit_code == 0);
  const std::string last = fs::canonical(dir / "straight" / "LATEST").filename();
  // A checkpoint is due after step 4 without the validation of an interval, and its losses come after its
  // state.
  std::size_t resumed_runs = 0;
  for (const auto& entry : fs::directory_iterator(dir / "straight")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("epoch_")) continue;
    for (const bool with_losses : {true, false}) {
      CAPTURE(name);
      CAPTURE(with_losses);
      const std::string to = cat("resumed", resumed_runs++);
      fs::create_directories(dir / to);
      fs::copy(entry.path(), dir / to / name, fs::copy_options::recursive);
      if (!with_losses) remove_losses(dir / to / name);
      const ProcessResult resumed = dir.train(plus(stopping, {"checkpoint.checkpoint_dir=" + to}));
      CAPTURE(resumed.err);
      REQUIRE(resumed.exit_code == 0);
      CHECK(resumed.err.find("(early stopping: ") != std::string::npos);
      CHECK(differences(dir / "straight" / last, dir / to / last) == "");
      for (const char* log : {"training.jsonl", "validation.jsonl"}) {
        if (!fs::exists(dir / to / log)) continue;
        const auto whole = repeatable(dir / "straight" / log), rest = repeatable(dir / to / log);
        REQUIRE(rest.size() < whole.size());
        CHECK(rest == std::vector(whole.end() - static_cast<std::ptrdiff_t>(rest.size()), whole.end()));
      }
    }
  }
  CHECK(resumed_runs >= 4);
}

TEST_CASE("early stopping: the loss has to fall by more than min_delta, in the set that metric names") {
  const RunDir dir;
  const Words sets{"validation_dataset_b._target_=squad",
                   "validation_dataset_b.dataset_name=samples/train.json",
                   "validation_dataset_b.limit_dataset_samples=3",
                   "early_stopping.metric=b",
                   "early_stopping.patience=2",
                   "early_stopping.min_delta=1000",
                   "optimizer.lr=0.001"};
  const ProcessResult run = dir.train(plus(stopping, sets));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  // Validations after steps 1, 3 and 4: no loss falls by 1000.
  CHECK(last_step_of(dir / "straight") == 4);
  CHECK(run.err.find("(early stopping: the validation loss of b of 2 validations in a row was not below ") !=
        std::string::npos);
  const Json state = read_json_file(dir / "straight" / "LATEST" / "state.json").at("early_stopping");
  CHECK(state.at("best_loss") == logged(dir / "straight" / "validation_b.jsonl", "val_loss").at(0));
  CHECK(run.err.find(", that of step 1, by more than 1000") != std::string::npos);
}

TEST_CASE("early stopping: the ranks end together, after the step at which one rank ends") {
  const RunDir dir;
  // No loss falls by 1000, on any layout: the validations after steps 3, 4 and 5 are no better than that
  // after step 1.
  const Words steady = plus(stopping, {"early_stopping.min_delta=1000", "optimizer.lr=0.001"});
  const Words on_two = RunDir::train_command(plus(steady, {"checkpoint.checkpoint_dir=two"}));
  const ProcessResult one = dir.train(steady);
  REQUIRE(one.exit_code == 0);
  CHECK(last_step_of(dir / "straight") == 5);
  const ProcessResult two = run_process(mpirun(2, on_two), dir.path());
  CAPTURE(two.err);
  REQUIRE(two.exit_code == 0);
  CHECK(last_step_of(dir / "two") == last_step_of(dir / "straight"));
  CHECK(read_jsonl(dir / "two" / "history.jsonl").back().contains("early_stopping"));
  const ProcessResult again = run_process(mpirun(2, on_two), dir.path());
  CAPTURE(again.err);
  CHECK(again.exit_code == 0);
  CHECK(again.err.find(", by early_stopping: ") != std::string::npos);
}
