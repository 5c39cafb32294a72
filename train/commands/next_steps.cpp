#include "train/commands/next_steps.h"

#include "core/error.h"
#include "data/chat/template_files.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

/// The checkpoint that LOWEST_VAL of the run leads to; empty where there is none.
fs::path best_of(const fs::path& run) {
  std::error_code none;
  const fs::path to = fs::read_symlink(run / "LOWEST_VAL", none);
  return to.empty() ? fs::path() : run / to.filename();
}

bool has_template(const fs::path& model) {
  try {
    return !stored_templates(model).empty();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::vector<std::string> next_steps(const RunResult& result, const Recipe& recipe,
                                    const CommandWords& recipe_words, int ranks, const std::string& program) {
  std::vector<std::string> lines;
  if (result.steps_done > result.first_step) {
    const std::filesystem::path folder = recipe.checkpoint.checkpoint_dir;
    lines.push_back(cat("logs: ", (folder / "training.jsonl").string(),
                        recipe.validation_datasets.empty() ? "" : ", validation",
                        ", history; a report: ", shell_line({program, "report", folder.string()})));
  }
  if (result.checkpoint.empty()) return lines;
  const std::string model = (result.checkpoint / "model").string();
  const fs::path best = best_of(recipe.checkpoint.checkpoint_dir);
  if (!best.empty() && best.filename() != result.checkpoint.filename())
    lines.push_back(cat("the lowest validation loss: ", best.string(),
                        "; the commands below take the newest, ", result.checkpoint.filename().string()));
  if (!recipe.validation_datasets.empty()) {
    CommandWords evaluate{program, "eval"};
    evaluate.insert(evaluate.end(), recipe_words.begin(), recipe_words.end());
    evaluate.insert(evaluate.end(), {"--model", model});
    const std::string where = ranks > 1 ? cat(", on ", ranks, " ranks as this run") : "";
    lines.push_back(cat("to evaluate", where, ": ", shell_line(evaluate)));
  }
  const bool speaks = recipe.dataset && recipe.dataset->kind != DatasetKind::mock &&
                      recipe.dataset->kind != DatasetKind::tokens &&
                      recipe.dataset->kind != DatasetKind::megatron;
  if (!speaks) return lines;
  const CommandWords generate{program, "generate", "--model", model};
  if (recipe.dataset->kind == DatasetKind::messages && has_template(model))
    lines.push_back(cat("to talk to it: ", shell_line(generate), " --chat"));
  else
    lines.push_back(cat("to generate: ", shell_line(generate), " --prompt TEXT"));
  return lines;
}

}  // namespace nemocube
