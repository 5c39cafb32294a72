#include "train/commands/next_steps.h"

#include "core/error.h"

namespace nemocube {

std::vector<std::string> next_steps(const RunResult& result, const Recipe& recipe,
                                    const CommandWords& recipe_words, int ranks) {
  std::vector<std::string> lines;
  if (result.steps_done > result.first_step) {
    const std::filesystem::path folder = recipe.checkpoint.checkpoint_dir;
    lines.push_back(cat("logs: ", (folder / "training.jsonl").string(),
                        recipe.validation_datasets.empty() ? "" : ", validation",
                        ", history; a report: ", shell_line({"nemocube", "report", folder.string()})));
  }
  if (result.checkpoint.empty()) return lines;
  const std::string model = (result.checkpoint / "model").string();
  if (!recipe.validation_datasets.empty()) {
    CommandWords evaluate{"nemocube", "eval"};
    evaluate.insert(evaluate.end(), recipe_words.begin(), recipe_words.end());
    evaluate.insert(evaluate.end(), {"--model", model});
    const std::string where = ranks > 1 ? cat(", on ", ranks, " ranks as this run") : "";
    lines.push_back(cat("to evaluate", where, ": ", shell_line(evaluate)));
  }
  const bool speaks = recipe.dataset && recipe.dataset->kind != DatasetKind::mock &&
                      recipe.dataset->kind != DatasetKind::tokens &&
                      recipe.dataset->kind != DatasetKind::megatron;
  if (speaks)
    lines.push_back("to generate: " +
                    shell_line({"nemocube", "generate", "--model", model, "--prompt", "TEXT"}));
  return lines;
}

}  // namespace nemocube
