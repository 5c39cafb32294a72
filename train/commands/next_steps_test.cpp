#include "train/commands/next_steps.h"

#include <doctest/doctest.h>

using namespace nemocube;
using Lines = std::vector<std::string>;

TEST_CASE("next steps: of a run with a model, of one without, and of one that did nothing") {
  Recipe recipe;
  recipe.checkpoint.checkpoint_dir = "runs/my run";
  recipe.dataset.emplace().kind = DatasetKind::squad;
  recipe.validation_datasets.try_emplace("default");
  RunResult result;
  result.steps_done = 5;
  result.checkpoint = "runs/my run/epoch_0_step_4";
  const CommandWords words{"recipe.yaml", "--set", "optimizer.lr=1"};
  CHECK(
      next_steps(result, recipe, words, 1) ==
      Lines{"logs: runs/my run/training.jsonl, validation, history; a report: nemocube report 'runs/my run'",
            "to evaluate: nemocube eval recipe.yaml --set optimizer.lr=1 --model 'runs/my "
            "run/epoch_0_step_4/model'",
            "to generate: nemocube generate --model 'runs/my run/epoch_0_step_4/model' --prompt TEXT"});
  CHECK(next_steps(result, recipe, words, 8)[1].starts_with(
      "to evaluate, on 8 ranks as this run: nemocube eval recipe.yaml"));
  recipe.dataset->kind = DatasetKind::mock;  // has no text
  recipe.validation_datasets.clear();
  CHECK(next_steps(result, recipe, words, 1) ==
        Lines{"logs: runs/my run/training.jsonl, history; a report: nemocube report 'runs/my run'"});
  result.first_step = 5;  // nothing was left to train
  result.checkpoint.clear();
  CHECK(next_steps(result, recipe, words, 1).empty());
}
