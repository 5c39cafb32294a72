#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/log.h"
#include "data/json/atomic_file.h"
#include "data/json/json.h"
#include "train/assemble/from_recipe.h"
#include "train/commands/commands.h"
#include "train/commands/next_steps.h"
#include "train/commands/resume_command.h"
#include "train/cost/gpu_rates.h"
#include "train/datasets/recipe_datasets.h"
#include "train/run/benchmark_report.h"
#include "train/run/run.h"

namespace nemocube {
namespace {

struct TrainArguments {
  std::filesystem::path recipe;
  std::vector<std::string> overrides;
  std::string device;
  bool share_device = false;
  std::optional<std::string> profile;
  bool check = false;
  std::optional<std::int64_t> ranks;
  std::string gpu;
};

/// Keys of one section in one word, so that the list stays short: `compile (3 keys)`.
void report_no_effect(const Recipe& recipe) {
  for (const std::string& warning : recipe.warnings) log_warning(warning);
  std::vector<std::pair<std::string, int>> sections;
  std::map<std::string, std::string> only_key;
  for (const std::string& path : recipe.no_effect) {
    const auto dot = path.rfind('.');
    const std::string section = path.substr(0, dot);
    if (path == "wandb" || path == "mlflow" || path == "comet") {
      log_warning(recipe.file, ": ", path,
                  ": nothing is sent to this tracker; losses and rates of the run are in ",
                  (std::filesystem::path(recipe.checkpoint.checkpoint_dir) / "training.jsonl").string());
      continue;
    }
    if (sections.empty() || sections.back().first != section) sections.emplace_back(section, 0);
    ++sections.back().second;
    only_key[section] = path;
  }
  std::string keys;
  for (const auto& [section, count] : sections)
    keys +=
        cat(keys.empty() ? "" : ", ", count == 1 ? only_key[section] : cat(section, " (", count, " keys)"));
  if (!keys.empty()) log_info(recipe.file, ": without effect in this build: ", keys);
}

/// The recipe with what the command line changes in it.
CommandWords recipe_words(const TrainArguments& options) {
  CommandWords words{options.recipe.string()};
  for (const std::string& o : options.overrides) words.insert(words.end(), {"--set", o});
  return words;
}

/// The command that goes on from the newest checkpoint of a run.
std::string command_to_go_on(const TrainArguments& options, const Recipe& recipe, int ranks) {
  CommandWords program{program_word(), "train"}, more;
  const CommandWords words = recipe_words(options);
  program.insert(program.end(), words.begin(), words.end());
  // The checkpoint that this run started from is not the newest any more.
  if (recipe.checkpoint.restore_from) more = {"--set", "checkpoint.restore_from=LATEST"};
  return resume_command(program, more, ranks, command_lines_of_ancestors());
}

void report(const TrainArguments& options, const Recipe& recipe, int ranks, const RunResult& result) {
  for (const std::string& line : next_steps(result, recipe, recipe_words(options), ranks, program_word()))
    log_info(line);
  if (result.signal != 0 && recipe.checkpoint.enabled)
    log_info("to go on: ", command_to_go_on(options, recipe, ranks));
  log_at(result.signal == 0 ? LogLevel::info : LogLevel::warning, summary(result));
}

/// Rank 0 prints the table as it grows, and writes the file.
void measure(const Recipe& recipe, const ParallelSettings& settings, World& world, Device device) {
  const auto& path = recipe.benchmark.json_output_path;
  const bool writes = world.rank() == 0 && path && *path;
  if (writes) check_output_place(**path);
  const auto print = [](const BenchmarkResult& r) {
    if (r.step_seconds.size() == 1) std::cout << benchmark_head(r);
    std::cout << benchmark_step_line(r) << std::flush;
  };
  const BenchmarkResult result = run_benchmark(recipe, settings, world, device, print);
  if (world.rank() == 0) std::cout << benchmark_summary(result) << std::flush;
  if (writes) write_file_atomically(**path, dump_json(benchmark_json(result)) + "\n");
}

void run(TrainArguments options, const Launch& launch) {
  std::optional<StepRange> profile;
  if (options.profile) profile = parse_step_range(*options.profile);
  override_device(options.overrides, options.device, options.share_device);
  Recipe recipe = load_recipe(options.recipe, options.overrides);
  if (!options.gpu.empty()) gpu_rates(options.gpu);  // before anything is read
  // A GPU that is named need not be there.
  const Device chosen =
      options.gpu.empty()
          ? choose_device(recipe.device, training_operations(operation_of(recipe.optimizer->kind)),
                          asked_device(recipe, options.device))
          : Device::cuda;
  require(!profile || !is_benchmark(recipe), recipe.file,
          ": a benchmark (key recipe) has no run directory for --profile; nemocube bench step measures its "
          "parts");
  if (launch.rank == 0) report_no_effect(recipe);
  if (options.check) {
    if (launch.rank > 0) return;
    check_training(recipe, options.ranks.value_or(launch.size), chosen, options.gpu);
    std::cout << describe(recipe);
    return;
  }
  const ParallelSettings settings = settle(recipe);
  RunResult result;
  {
    World world(launch, comm_options(recipe));
    if (is_benchmark(recipe)) return measure(recipe, settings, world, recipe_device(recipe, chosen, world));
    result = run_training(recipe, settings, world, recipe_device(recipe, chosen, world), profile);
    // Before the ranks part: after a signal, mpirun kills the other ranks as soon as one has ended.
    if (launch.rank == 0) report(options, recipe, launch.size, result);
  }
  // The shell's convention for a process that a signal ended, so that launchers know the run is not complete.
  if (result.signal != 0) std::exit(128 + result.signal);
}

}  // namespace

void add_train_command(Command& app) {
  auto o = std::make_shared<TrainArguments>();
  Command* command = app.add_subcommand("train", "Fine-tune or pretrain as a recipe says");
  command->add_option("recipe", o->recipe, "recipe in YAML (keys of NeMo AutoModel)")->required();
  command->add_option("--set", o->overrides, "key.sub=value: change the recipe; may be repeated")
      ->allow_extra_args(false);
  add_device_option(*command, o->device, "the recipe's key device");
  add_share_device_option(*command, o->share_device);
  command->add_option(
      "--profile", o->profile,
      "steps=A-B: write what all ranks do in steps A to B, as a trace for ui.perfetto.dev, to "
      "profile/ of the run");
  Option* check = command->add_flag(
      "--check", o->check, "validate the recipe and the files it names, print it resolved, and run nothing");
  command
      ->add_option("--ranks", o->ranks,
                   "with --check: the number of ranks to check for; default: those started")
      ->check(in_range(1, 1'000'000))
      ->needs(check);
  command
      ->add_option("--gpu", o->gpu,
                   "with --check: say whether the run fits on such a GPU, which need not be there: h100-80 "
                   "or h200-141")
      ->needs(check);
  command->callback_of_ranks([o](const Launch& launch) { run(*o, launch); });
}

}  // namespace nemocube
