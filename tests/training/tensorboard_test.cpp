#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/support/read_events.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

/// What a log says of a field, as event files hold it.
Points event_points(const fs::path& log, const char* field) {
  Points points;
  for (const Json& line : read_jsonl(log)) points[line["step"]] = line[field].get<float>();
  return points;
}

/// The points are those of the logs, once each.
void check_events(const fs::path& run) {
  const auto steps = shown_points(run / "tensorboard"),
             samples = shown_points(run / "tensorboard" / "samples");
  const Points loss = event_points(run / "training.jsonl", "loss");
  REQUIRE(loss.size() == 12);
  CHECK(steps.at("lm loss") == loss);
  CHECK(steps.at("loss") == loss);
  CHECK(steps.at("learning-rate") == event_points(run / "training.jsonl", "lr"));
  CHECK(steps.at("grad-norm") == event_points(run / "training.jsonl", "grad_norm"));
  CHECK(steps.at("num_label_tokens") == event_points(run / "training.jsonl", "num_label_tokens"));
  CHECK(steps.at("lm loss validation") == event_points(run / "validation.jsonl", "val_loss"));
  // A point for each step over the samples so far, which grow by the step's batch.
  const Points over_samples = samples.at("lm loss vs samples");
  REQUIRE(over_samples.size() == loss.size());
  std::int64_t consumed = 0;
  auto point = over_samples.begin();
  for (const auto& [step, value] : loss) {
    consumed += static_cast<std::int64_t>(steps.at("batch-size").at(step));
    CHECK(point->first == consumed);
    CHECK(point->second == value);
    ++point;
  }
  CHECK(samples.at("lm loss validation vs samples").size() == steps.at("lm loss validation").size());
}

const std::vector<std::string> with_events{"tensorboard.log_throughput=true",
                                           "tensorboard.log_timers_to_tensorboard=true",
                                           "tensorboard.log_world_size_to_tensorboard=true"};

}  // namespace

TEST_CASE("tensorboard: the points of a run are those of its logs, and a resumed run opens a new file") {
  const RunDir dir;
  const fs::path run = dir / "straight";
  const ProcessResult first = dir.train(with_events);
  CAPTURE(first.err);
  REQUIRE(first.exit_code == 0);
  check_events(run);
  const auto steps = shown_points(run / "tensorboard");
  CHECK(event_files_in(run / "tensorboard").size() == 1);
  // One MoE block: the loss of training.jsonl over its coefficient.
  for (const auto& [step, value] : event_points(run / "training.jsonl", "aux_loss"))
    CHECK(steps.at("load_balancing_loss").at(step) == doctest::Approx(value / 0.01).epsilon(1e-5));
  for (const auto& [step, seconds] : steps.at("iteration-time")) {
    CHECK(seconds > 0);
    CHECK(steps.at("throughput").at(step) > 0);
    CHECK(steps.at("world-size").at(step) == 1);
  }
  // Back to step 4: until the first checkpoint of the new branch the old one is shown.
  const ProcessResult again =
      dir.train(plus(with_events, {"checkpoint.restore_from=epoch_0_step_4", "optimizer.lr=0.005"}));
  CAPTURE(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(event_files_in(run / "tensorboard").size() == 2);
  check_events(run);
  CHECK(shown_points(run / "tensorboard").at("lm loss").at(11) != steps.at("lm loss").at(11));
}

TEST_CASE("tensorboard: no section, no events; a folder of its own; a place that cannot be used is refused") {
  const RunDir dir;
  REQUIRE(dir.train({"step_scheduler.max_steps=1", "lr_scheduler=null"}).exit_code == 0);
  CHECK_FALSE(fs::exists(dir / "straight" / "tensorboard"));
  REQUIRE(dir.train({"checkpoint.checkpoint_dir=plain", "step_scheduler.max_steps=1", "lr_scheduler=null",
                     "tensorboard.enabled=false"})
              .exit_code == 0);
  CHECK_FALSE(fs::exists(dir / "plain" / "tensorboard"));
  REQUIRE(dir.train({"checkpoint.checkpoint_dir=other", "step_scheduler.max_steps=4",
                     "tensorboard.tensorboard_dir=events/here", "tensorboard.tensorboard_log_interval=2"})
              .exit_code == 0);
  CHECK_FALSE(fs::exists(dir / "other" / "tensorboard"));
  CHECK(steps_of(shown_points(dir / "events" / "here").at("lm loss")) == std::vector<std::int64_t>{1, 3});
  spit(dir / "file", "");
  const ProcessResult refused = run_process(
      {program(), "train", "recipe.yaml", "--check", "--set", "tensorboard.tensorboard_dir=file/events"},
      dir.path());
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("tensorboard.tensorboard_dir: 'file/events'") != std::string::npos);
}

TEST_CASE("tensorboard: several ranks write one file with the points of the whole job") {
  for (const std::vector<std::string>& grid :
       {std::vector<std::string>{"step_scheduler.local_batch_size=1", "distributed.ep_size=2"},
        std::vector<std::string>{"distributed.pp_size=2", "distributed.pipeline.pp_schedule=1f1b",
                                 "distributed.pipeline.pp_microbatch_size=1"}}) {
    CAPTURE(grid[0]);
    const RunDir dir;
    const ProcessResult run =
        run_process(mpirun(2, RunDir::train_command(plus(with_events, grid))), dir.path());
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(event_files_in(dir / "straight" / "tensorboard").size() == 1);
    check_events(dir / "straight");
    const auto steps = shown_points(dir / "straight" / "tensorboard");
    for (const auto& [step, ranks] : steps.at("world-size")) CHECK(ranks == 2);
    for (const auto& [step, value] : event_points(dir / "straight" / "training.jsonl", "aux_loss"))
      CHECK(steps.at("load_balancing_loss").at(step) == doctest::Approx(value / 0.01).epsilon(1e-5));
  }
}
