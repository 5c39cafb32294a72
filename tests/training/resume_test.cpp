#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/megatron/test_token_files.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

fs::path latest(const fs::path& dir) { return fs::canonical(dir / "LATEST"); }

// Straight run; then the same from the checkpoint after five steps, elsewhere.
void check_resume(const Overrides& overrides) {
  const RunDir dir;
  const ProcessResult straight = dir.train(overrides);
  CAPTURE(straight.err);
  REQUIRE(straight.exit_code == 0);
  const fs::path from = dir / "straight" / "epoch_0_step_4";
  REQUIRE(fs::exists(from));
  const ProcessResult resumed = dir.train(
      plus(overrides, {"checkpoint.checkpoint_dir=resumed", "checkpoint.restore_from=" + from.string()}));
  CAPTURE(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  for (const char* step : {"epoch_1_step_9", "epoch_1_step_11"}) {
    CAPTURE(step);
    CHECK(differences(dir / "straight" / step, dir / "resumed" / step) == "");
  }
  CHECK(contents(dir / "resumed" / "epoch_1_step_11").size() >= 5);
  for (const char* log : {"training.jsonl", "validation.jsonl"}) {
    const auto whole = repeatable(dir / "straight" / log), rest = repeatable(dir / "resumed" / log);
    REQUIRE(rest.size() < whole.size());
    REQUIRE(!rest.empty());
    CHECK(rest == std::vector(whole.end() - static_cast<std::ptrdiff_t>(rest.size()), whole.end()));
  }
  CHECK(read_jsonl(dir / "resumed" / "training.jsonl").size() == 7);
}

std::size_t lines_in(const fs::path& path) {
  std::ifstream in(path);
  return static_cast<std::size_t>(
      std::count(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>(), '\n'));
}

// A run long enough to be met in the middle, and short enough to be finished.
const Overrides long_run{"step_scheduler.max_steps=60", "step_scheduler.num_epochs=20",
                         "step_scheduler.ckpt_every_steps=1000", "step_scheduler.val_every_steps=null"};

void check_signal(int number, int exit_code, const Overrides& overrides = {}) {
  const RunDir dir;
  {
    Process running(
        RunDir::train_command(plus(plus(long_run, {"checkpoint.checkpoint_dir=stopped"}), overrides)),
        dir.path());
    for (int i = 0; i < 6000 && lines_in(dir / "stopped" / "training.jsonl") < 2; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    running.signal(number);
    const ProcessResult stopped = running.wait();
    CAPTURE(stopped.err);
    REQUIRE(stopped.exit_code == exit_code);
    CHECK(stopped.err.find(cat("stopped by signal ", number)) != std::string::npos);
  }
  const auto steps = read_jsonl(dir / "stopped" / "training.jsonl");
  REQUIRE(steps.size() >= 2);
  REQUIRE(steps.size() < 60);
  // The checkpoint is that of the last step in the log, and nothing else lies there.
  const std::string name = latest(dir / "stopped").filename().string();
  CHECK(name.ends_with(cat("_step_", steps.size() - 1)));
  CHECK(names_in(dir / "stopped") ==
        std::vector<std::string>{"LATEST", name, "history.jsonl", "training.jsonl"});

  const ProcessResult finished = dir.train(plus(long_run, {"checkpoint.checkpoint_dir=stopped"}));
  CAPTURE(finished.err);
  REQUIRE(finished.exit_code == 0);
  const ProcessResult straight = dir.train(long_run);
  REQUIRE(straight.exit_code == 0);
  CHECK(differences(latest(dir / "stopped"), latest(dir / "straight")) == "");
  CHECK(repeatable(dir / "stopped" / "training.jsonl") == repeatable(dir / "straight" / "training.jsonl"));
  CHECK(repeatable(dir / "stopped" / "validation.jsonl") ==
        repeatable(dir / "straight" / "validation.jsonl"));
}

}  // namespace

TEST_CASE("resume: blended token files go on with the sample that was next, same bits") {
  const RunDir dir;
  write_token_files(dir / "a", std::vector<std::int64_t>(30, 20), 3);
  write_token_files(dir / "b", {7, 300, 0, 45}, 1000);
  std::string recipe = small_recipe();
  const auto replace_line = [&](const std::string& key, const std::string& line) {
    const std::size_t begin = recipe.find("\n" + key + ":") + 1;
    recipe.replace(begin, recipe.find('\n', begin) - begin, line);
  };
  replace_line("dataset",
               "dataset: {_target_: MegatronPretraining, paths: ['2', a, '1', b], seq_length: 32}");
  replace_line("validation_dataset",
               "validation_dataset: {_target_: MegatronPretraining, paths: a, splits_to_build: validation, "
               "split: '80,20', seq_length: 32}");
  replace_line("packed_sequence", "");
  replace_line("dataloader", "");
  spit(dir / "recipe.yaml", recipe);
  const ProcessResult straight = dir.train();
  CAPTURE(straight.err);
  REQUIRE(straight.exit_code == 0);
  const ProcessResult resumed =
      dir.train({"checkpoint.checkpoint_dir=resumed", "checkpoint.restore_from=straight/epoch_0_step_4"});
  CAPTURE(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  CHECK(latest(dir / "straight").filename() == "epoch_0_step_11");
  CHECK(differences(latest(dir / "straight"), latest(dir / "resumed")) == "");
  CHECK(read_jsonl(dir / "resumed" / "training.jsonl").size() == 7);
}

TEST_CASE("resume: from a checkpoint, the rest of an f32 run has the same bits") { check_resume({}); }

TEST_CASE("resume: from a checkpoint, the rest of a bf16 run has the same bits") {
  check_resume({"model.torch_dtype=bf16"});
}

TEST_CASE("resume: from a checkpoint, the rest of an f64 run has the same bits") {
  check_resume({"model.torch_dtype=float64"});
}

TEST_CASE("resume: from a checkpoint that was written beside training, the rest has the same bits") {
  check_resume({"checkpoint.is_async=true"});
}

TEST_CASE("resume: noise on the embeddings, of packed and of unpacked rows") {
  check_resume({"neftune=5.0"});
  check_resume({"neftune.noise_alpha=5.0", "packed_sequence.packed_sequence_size=0",
                "dataset.limit_dataset_samples=24"});
}

TEST_CASE("resume: SGD with momentum, unpacked rows and activation checkpointing") {
  check_resume({"optimizer={_target_: torch.optim.SGD, lr: 0.05, momentum: 0.9, nesterov: true}",
                "packed_sequence.packed_sequence_size=0", "dataset.limit_dataset_samples=24",
                "distributed.activation_checkpointing=true"});
}

TEST_CASE("resume: a run with nothing left to do changes nothing") {
  const RunDir dir;
  REQUIRE(dir.train({"step_scheduler.max_steps=4"}).exit_code == 0);
  const auto before = contents(dir / "straight");
  const ProcessResult again = dir.train({"step_scheduler.max_steps=4"});
  CHECK(again.exit_code == 0);
  CHECK(contents(dir / "straight") == before);
}

TEST_CASE(
    "signals: SIGTERM ends the run with 143 and a checkpoint from which it completes with the same bits") {
  check_signal(SIGTERM, 143);
}

TEST_CASE("signals: SIGTERM waits for the checkpoint that is written beside training") {
  check_signal(SIGTERM, 143, {"checkpoint.is_async=true"});
}

TEST_CASE(
    "signals: SIGINT ends the run with 130 and a checkpoint from which it completes with the same bits") {
  check_signal(SIGINT, 130);
}

TEST_CASE("signals: one that arrives during validation ends it, and the step is saved") {
  // Validation after every step answers many questions with many tokens, which takes long.
  const Overrides validating = {"step_scheduler.val_every_steps=1",
                                "validation_dataset.dataset_name=samples/train.json",
                                "validation_dataset.limit_dataset_samples=400",
                                "evaluation={squad_metrics: true, max_new_tokens: 500}",
                                "lr_scheduler=null",
                                "step_scheduler.num_epochs=20"};
  for (const int every : {1, 1000}) {
    CAPTURE(every);
    const RunDir dir;
    const Overrides saving = {cat("step_scheduler.ckpt_every_steps=", every)};
    // Where the step's checkpoint is due, it is there before validation begins.
    const fs::path sign = dir / "straight" / (every == 1 ? "LATEST" : "training.jsonl");
    const auto begun = [&] { return fs::exists(sign) && (every == 1 || lines_in(sign) > 0); };
    Process running(RunDir::train_command(plus(validating, saving)), dir.path());
    for (int i = 0; i < 60000 && !begun(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    running.signal(SIGTERM);
    const ProcessResult stopped = running.wait();
    CAPTURE(stopped.err);
    CHECK(stopped.exit_code == 143);
    CHECK(stopped.err.find("validation after step 0 given up") != std::string::npos);
    CHECK(names_in(dir / "straight") ==
          std::vector<std::string>{"LATEST", "epoch_0_step_0", "history.jsonl", "training.jsonl"});
    CHECK_FALSE(fs::exists(dir / "straight" / "epoch_0_step_0" / "losses.json"));

    // The run makes up for the validation and goes on after that step; no step is in a log twice.
    const ProcessResult rest =
        dir.train({"step_scheduler.val_every_steps=1", "step_scheduler.max_steps=3", "lr_scheduler=null"});
    CAPTURE(rest.err);
    REQUIRE(rest.exit_code == 0);
    const auto steps = [&](const char* log) {
      std::vector<int> all;
      for (const Json& line : read_jsonl(dir / "straight" / log)) all.push_back(line["step"]);
      return all;
    };
    CHECK(steps("training.jsonl") == std::vector<int>{0, 1, 2});
    CHECK(steps("validation.jsonl") == std::vector<int>{0, 1, 2});
    CHECK(rest.err.find("validation after step 0 is missing and comes first") != std::string::npos);
    CHECK(fs::exists(dir / "straight" / "epoch_0_step_0" / "losses.json"));
  }
}

TEST_CASE("resume: validation lost through a kill is made up, also when no step is left, and once only") {
  const RunDir dir;
  const Overrides four{"step_scheduler.max_steps=4", "lr_scheduler=null",
                       "validation_dataset_more={_target_: squad, dataset_name: samples/validation.json, "
                       "limit_dataset_samples: 2}"};
  REQUIRE(dir.train(four).exit_code == 0);
  const fs::path saved = latest(dir / "straight");
  const Json losses = read_json_file(saved / "losses.json");
  const auto log = repeatable(dir / "straight" / "validation.jsonl");
  const auto more = repeatable(dir / "straight" / "validation_more.jsonl");
  REQUIRE(log.size() == 2);
  // As a kill leaves it between the lines of the two sets.
  remove_losses(saved);
  const std::string whole = slurp(dir / "straight" / "validation_more.jsonl");
  spit(dir / "straight" / "validation_more.jsonl", whole.substr(0, whole.find('\n') + 1));
  const ProcessResult again = dir.train(four);
  CAPTURE(again.err);
  CHECK(again.exit_code == 0);
  CHECK(again.err.find("validation after step 3 is missing and comes first") != std::string::npos);
  CHECK(repeatable(dir / "straight" / "validation.jsonl") == log);
  CHECK(repeatable(dir / "straight" / "validation_more.jsonl") == more);
  CHECK(read_json_file(saved / "losses.json") == losses);
  CHECK(dir.train(four).err.find("is missing") == std::string::npos);
}

TEST_CASE("runs: the log holds the auxiliary losses that are on, and no others") {
  const RunDir dir;
  REQUIRE(dir.train({"step_scheduler.max_steps=4", "checkpoint.enabled=false",
                     "model.moe={seq_aux_loss_coeff: 0.01, global_aux_loss_coeff: 0.02}"})
              .exit_code == 0);
  const auto log = read_jsonl(dir / "straight" / "training.jsonl");
  REQUIRE(log.size() == 4);
  for (const Json& line : log) {
    CHECK(line["seq_aux_loss"].get<double>() > 0.005);
    CHECK(line["global_aux_loss"].get<double>() > 0.01);
    CHECK_FALSE(line.contains("aux_loss"));
    CHECK_FALSE(line.contains("z_loss"));
  }
}

TEST_CASE("runs: the same recipe twice gives the same bits") {
  const RunDir dir;
  for (const char* name : {"one", "two"})
    REQUIRE(dir.train({cat("checkpoint.checkpoint_dir=", name), "step_scheduler.max_steps=6"}).exit_code ==
            0);
  CHECK(repeatable(dir / "one" / "training.jsonl") == repeatable(dir / "two" / "training.jsonl"));
  CHECK(repeatable(dir / "one" / "validation.jsonl") == repeatable(dir / "two" / "validation.jsonl"));
  CHECK(differences(latest(dir / "one"), latest(dir / "two")) == "");
  // And another seed gives others, as does another law of fresh weights.
  for (const char* other : {"seed=8", "model.initialisation=megatron"}) {
    REQUIRE(dir.train({"checkpoint.checkpoint_dir=three", "step_scheduler.max_steps=6", other}).exit_code ==
            0);
    CHECK(repeatable(dir / "one" / "training.jsonl") != repeatable(dir / "three" / "training.jsonl"));
    fs::remove_all(dir / "three");
  }
}

TEST_CASE("train: a directory in which another run is at work is refused and left alone") {
  const RunDir dir;
  Process first(RunDir::train_command(long_run), dir.path());
  while (lines_in(dir / "straight" / "training.jsonl") < 2)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const ProcessResult second = dir.train(long_run);
  CHECK(second.exit_code == 2);
  CHECK(second.err.find("straight: another run is at work here") != std::string::npos);
  first.signal(SIGTERM);
  CHECK(first.wait().exit_code == 143);
  CHECK(lines_in(dir / "straight" / "training.jsonl") < 60);
  CHECK(dir.train(long_run).exit_code == 0);
  CHECK(lines_in(dir / "straight" / "training.jsonl") == 60);
}
