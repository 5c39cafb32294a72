#include <filesystem>
#include <iostream>
#include <memory>

#include "core/log.h"
#include "train/commands/commands.h"
#include "train/datasets/recipe_datasets.h"
#include "train/loop/run.h"

namespace nemocube {
namespace {

struct Options {
  std::filesystem::path recipe;
  std::vector<std::string> overrides;
  bool check = false;
};

void report_ignored(const Recipe& recipe) {
  if (recipe.no_effect.empty()) return;
  std::string keys;
  for (const std::string& key : recipe.no_effect) keys += (keys.empty() ? "" : ", ") + key;
  log_info(recipe.file, ": accepted, without effect in this build: ", keys);
}

/// `text` as one word of a shell's command line.
std::string shell_word(const std::string& text) {
  constexpr auto plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./,:=@%";  // of no meaning to a shell
  if (!text.empty() && text.find_first_not_of(plain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

/// The command that goes on from the newest checkpoint of a run.
std::string resume_command(const Options& options, const Recipe& recipe) {
  std::string command = "nemocube train " + shell_word(options.recipe.string());
  for (const std::string& o : options.overrides) command += " --set " + shell_word(o);
  // The checkpoint that this run started from is not the newest any more.
  if (recipe.checkpoint.restore_from) command += " --set checkpoint.restore_from=LATEST";
  return command;
}

void run(const Options& options) {
  const Recipe recipe = load_recipe(options.recipe, options.overrides);
  report_ignored(recipe);
  check_kernel_choice(recipe.kernels);
  if (options.check) {
    check_training(recipe);
    std::cout << describe(recipe);
    return;
  }
  const RunResult result = run_training(recipe);
  if (result.signal != 0 && recipe.checkpoint.enabled)
    log_info("to go on: ", resume_command(options, recipe));
  log_at(result.signal == 0 ? LogLevel::info : LogLevel::warning, summary(result));
  // The shell's convention for a process that a signal ended, so that launchers know the run is not complete.
  if (result.signal != 0) std::exit(128 + result.signal);
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("train", "Fine-tune or pretrain as a recipe says");
  command->add_option("recipe", o->recipe, "recipe in YAML (keys of NeMo AutoModel)")->required();
  command->add_option("--set", o->overrides, "key.sub=value: change the recipe; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--check", o->check,
                    "validate the recipe and the files it names, print it resolved, and run nothing");
  command->callback([o] { run(*o); });
}

}  // namespace nemocube
