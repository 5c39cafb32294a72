#include "train/commands/next_steps.h"

#include <doctest/doctest.h>

#include "data/json/test_dir.h"

using namespace nemocube;
using namespace nemocube::testing;
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

TEST_CASE("next steps: of a model that chats, and of a run whose newest checkpoint is not the best") {
  const TestDir dir;
  const std::filesystem::path run = dir / "run";
  Recipe recipe;
  recipe.checkpoint.checkpoint_dir = run.string();
  recipe.dataset.emplace().kind = DatasetKind::messages;
  RunResult result;
  result.steps_done = 5;
  result.checkpoint = run / "epoch_0_step_4";
  std::filesystem::create_directories(run / "epoch_0_step_4/model");
  std::filesystem::create_directory_symlink("epoch_0_step_4", run / "LOWEST_VAL");
  const auto last = [&] { return next_steps(result, recipe, {"r.yaml"}, 1, "build/nemocube").back(); };
  const std::string model = shell_word((run / "epoch_0_step_4/model").string());
  CHECK(last() == cat("to generate: build/nemocube generate --model ", model, " --prompt TEXT"));
  spit(run / "epoch_0_step_4/model/chat_template.jinja", "{{ messages }}");
  CHECK(last() == cat("to talk to it: build/nemocube generate --model ", model, " --chat"));
  CHECK(next_steps(result, recipe, {"r.yaml"}, 1).size() == 2);
  std::filesystem::remove(run / "LOWEST_VAL");
  std::filesystem::create_directory_symlink("epoch_0_step_2", run / "LOWEST_VAL");
  CHECK(next_steps(result, recipe, {"r.yaml"}, 1)[1] ==
        cat("the lowest validation loss: ", (run / "epoch_0_step_2").string(),
            "; the commands below take the newest, epoch_0_step_4"));
}
