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
  log_info("done: ", result.steps, " steps",
           result.checkpoint.empty() ? "" : ", model in " + (result.checkpoint / "model").string());
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
