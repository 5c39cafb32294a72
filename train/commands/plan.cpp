#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>

#include "core/log.h"
#include "data/hf/hf_config.h"
#include "parallel/schedule/csv.h"
#include "parallel/schedule/schedules.h"
#include "parallel/schedule/simulate.h"
#include "train/assemble/from_recipe.h"
#include "train/commands/commands.h"
#include "train/cost/gpu_rates.h"
#include "train/cost/planned_load.h"
#include "train/cost/write_plan.h"
#include "train/ranks/plan_model.h"
#include "train/recipe/files.h"

namespace nemocube {
namespace {

struct PlanArguments {
  std::filesystem::path recipe;
  std::vector<std::string> overrides;
  std::string gpu = "h100";
  bool gpu_named = false;
  std::int64_t ranks = 0;
  bool json = false;
  std::string schedule;
  std::int64_t pp = 0, microbatches = 0;
  std::optional<std::int64_t> chunks;
};

void print_schedule(const PlanArguments& o) {
  const ScheduleKind kind = parse_schedule_kind(o.schedule);
  const std::int64_t chunks = o.chunks.value_or(has_one_chunk(kind) ? 1 : 2);
  // A table of so many cells takes two seconds and 150 MB. Each rank has a column for each of its own
  // actions, and the last rank waits for all others. Sizes below 1 are refused by make_schedule().
  constexpr std::int64_t most_cells = std::int64_t{1} << 21;
  const double columns =
      static_cast<double>(o.pp) + 2 * static_cast<double>(chunks) * static_cast<double>(o.microbatches);
  require(o.pp < 1 || columns * static_cast<double>(o.pp) <= most_cells, "plan: the schedule of ",
          counted(o.pp, "rank"), " and ", counted(o.microbatches, "microbatch", "microbatches"),
          " is a table of ", o.pp, " rows and at least ", static_cast<std::int64_t>(std::min(columns, 9e18)),
          " columns; want at most ", most_cells, " cells");
  const Schedule schedule = make_schedule(kind, o.pp, chunks, o.microbatches);
  write_schedule_csv(std::cout, schedule);
  const Simulation simulation = simulate(schedule);
  const double idle =
      std::accumulate(simulation.idle.begin(), simulation.idle.end(), 0.0) / static_cast<double>(o.pp);
  log_info(name_of(kind), " on ", counted(o.pp, "rank"), " of ", counted(chunks, "stage"), ", ",
           counted(o.microbatches, "microbatch", "microbatches"), ": ", simulation.makespan,
           " time units (F 1, B 2, I 1, W 1), ranks idle for ", std::round(1000 * idle) / 10,
           " % of them (bubble); at most ", *std::ranges::max_element(simulation.live),
           " live activations on one rank");
}

std::string parameters_text(const Stack& model) {
  const std::string all = cat(model.parameters().element_count(), " parameters");
  return model.choices().frozen.empty() ? all
                                        : cat(model.parameters().trainable_count(), " trained of ", all);
}

void print_run(const PlanArguments& o) {
  gpu_rates(o.gpu);  // before anything is printed
  Recipe recipe = load_recipe(o.recipe, o.overrides, RecipeUse::plan);
  const ParallelSettings settings = settle(recipe);
  const RankSizes ranks = rank_sizes(recipe.distributed, o.ranks);
  const ModelSetup setup = recipe_setup(recipe, OpenedModel(recipe.model->path, config_of_model(recipe)));
  const Stack model(setup, weight_dtype(recipe, setup.config), Device::meta);
  const StepLoad load = planned_load(recipe, model, ranks.dp);
  RunCosts costs(setup, plan_model(recipe.distributed, settings, ranks, setup), load,
                 optimizer_options(*recipe.optimizer));
  const bool on_gpus = recipe.device == DeviceChoice::cuda || o.gpu_named;
  const PlanWords words{ranks.text,
                        cat(parameters_text(model), " in ", load.dtype, "; a step has ",
                            counted(load.microbatches, "microbatch", "microbatches"), " of ",
                            counted(load.microbatch.count(), "row"), " of ", load.microbatch.longest(),
                            " tokens on each of ", counted(ranks.dp, "replica")),
                        assumption(recipe, setup.config),
                        o.gpu,
                        on_gpus,
                        on_gpus && o.ranks > 1 && exchanges_by_nccl(recipe)};
  o.json ? print_plan_json(std::cout, words, costs) : print_plan(std::cout, words, costs);
}

}  // namespace

void add_plan_command(Command& app) {
  auto o = std::make_shared<PlanArguments>();
  Command* command = app.add_subcommand(
      "plan",
      "What every rank of a training run holds and sends, or the schedule of a pipeline; starts no ranks");
  auto* recipe = command->add_option("recipe", o->recipe,
                                     "recipe in YAML; of its files only the model's config.json is read");
  auto* ranks = command->add_option("--ranks", o->ranks, "ranks of the run")->check(in_range(1, 1'000'000));
  ranks->needs(recipe);
  command->add_option("--set", o->overrides, "key.sub=value: change the recipe; may be repeated")
      ->allow_extra_args(false)
      ->needs(recipe);
  auto* gpu =
      command->add_option("--gpu", o->gpu,
                          "h100 (or h100-80) or h200 (or h200-141): from whose rates the time of a step is "
                          "estimated, and whether a rank fits in its memory");
  gpu->capture_default_str()->needs(recipe);
  command->add_flag("--json", o->json, "one JSON object, with every rank")->needs(recipe);
  auto* schedule =
      command->add_option("--schedule", o->schedule,
                          "gpipe, 1f1b, interleaved1f1b, interleavedzerobubble or zbv, or PyTorch's "
                          "class name");
  schedule->excludes(recipe);
  auto* pp = command->add_option("--pp", o->pp, "pipeline ranks")->needs(schedule);
  command
      ->add_option("--chunks", o->chunks,
                   "stages of each rank; default: 1 with gpipe and 1f1b, 2 with the others")
      ->needs(schedule);
  auto* microbatches =
      command->add_option("--microbatches", o->microbatches, "microbatches of a step")->needs(schedule);
  command->footer(
      "With a recipe: process groups, stages, bytes that each rank holds (activations are an estimate) and "
      "whether they fit on a\n"
      "GPU (with --gpu or device: cuda), what the ranks send in a step by group and operation, the share of "
      "a step in which a pipeline is idle, and "
      "about how "
      "long a\n"
      "step takes on GPUs, with what that takes for granted.\n"
      "\n"
      "With --schedule: a row for each rank in the notation of PyTorch's schedule files: 4B1 is stage 4, "
      "backward\n"
      "pass, microbatch 1. F is the forward pass, B the whole backward pass, I its input gradient and W its "
      "weight\n"
      "gradients. A column is a time step, an empty cell an idle one. Duration, bubble and live activations\n"
      "(forward passes whose B or I is still to come) go to standard error.");
  command->callback([o, recipe, ranks, gpu, schedule, pp, microbatches] {
    require(recipe->count() + schedule->count() == 1, "plan: give a recipe and --ranks, or --schedule");
    if (recipe->count() == 1) {
      require(ranks->count() == 1, "plan: --ranks is missing, the number of ranks of the run");
      o->gpu_named = gpu->count() == 1;
      return print_run(*o);
    }
    require(pp->count() + microbatches->count() == 2, "plan: --schedule wants --pp and --microbatches");
    print_schedule(*o);
  });
}

}  // namespace nemocube
