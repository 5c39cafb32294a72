#include <doctest/doctest.h>

#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Three steps of a model whose routers have softmax scores and no bias.
ProcessResult train(const TestDir& dir, Words overrides) {
  const std::string golden = source_path("tests/goldens/qwen3_moe");
  Words command{program(), "train", golden + "/recipe.yaml"};
  for (const std::string& word : plus(
           {"model.pretrained_model_name_or_path=" + golden, "dataset.path=" + golden + "/tokens.safetensors",
            "step_scheduler.max_steps=3", "checkpoint.checkpoint_dir=run"},
           overrides)) {
    command.emplace_back("--set");
    command.push_back(word);
  }
  return run_process(command, dir.path());
}

}  // namespace

TEST_CASE("routers without a bias: balanced by a loss, and not by a bias") {
  wait_politely();
  const TestDir dir;
  const ProcessResult refused = train(dir, {"model.moe.expert_bias_update_rate=0.5"});
  CHECK(refused.exit_code == 2);
  CHECK(
      refused.err.find("model.moe.expert_bias_update_rate is 0.5, but the routers of this model have no bias "
                       "to balance them by; want 0") != std::string::npos);
  const ProcessResult run = train(dir, {"model.moe.aux_loss_coeff=0.25"});
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const std::vector<Json> steps = read_jsonl(dir / "run" / "training.jsonl");
  REQUIRE(steps.size() == 3);
  // Summed over two layers. A perfectly balanced router has the coefficient itself, any other one more.
  for (const Json& step : steps) CHECK(step.at("aux_loss").get<double>() > 2 * 0.25);
}
