#pragma once
#include <string>
#include <vector>

#include "train/commands/resume_command.h"
#include "train/recipe/recipe.h"
#include "train/run/run_summary.h"

namespace nemocube {

/// Next steps for a run that has ended, a line for each: where its logs are and which command shows them, and
/// the commands that evaluate and try its model, where the recipe has what they need. `recipe_words`: the
/// recipe's file and the options that changed it. `ranks`: the number of ranks of the run, which the recipe's
/// layout may need. `program`: the word that starts this program. The checkpoint with the lowest validation
/// loss is named where it is not the newest, and `--chat` where the model was trained on conversations and
/// has a template. No line where nothing was trained and there is no model.
std::vector<std::string> next_steps(const RunResult& result, const Recipe& recipe,
                                    const CommandWords& recipe_words, int ranks,
                                    const std::string& program = "nemocube");

}  // namespace nemocube
