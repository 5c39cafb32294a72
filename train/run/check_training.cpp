#include <algorithm>

#include "core/log.h"
#include "core/memory_limit.h"
#include "data/json/atomic_file.h"
#include "train/assemble/from_recipe.h"
#include "train/assemble/group_rule.h"
#include "train/checkpoint/checkpoint.h"
#include "train/cost/memory_report.h"
#include "train/datasets/chat_template.h"
#include "train/datasets/recipe_datasets.h"
#include "train/ranks/plan_model.h"
#include "train/recipe/files.h"
#include "train/run/run.h"
#include "train/run/run_directory.h"
#include "train/run/tensorboard.h"
#include "train/run/tensorboard_folder.h"
#include "train/run/validation.h"
#include "train/schedule/lr_schedule.h"
#include "train/schedule/step_schedule.h"

namespace nemocube {
namespace {

/// The Errors of several checks.
class Problems {
 public:
  template <class Check>
  void collect(Check&& check) {
    try {
      check();
    } catch (const Error& e) {
      // Two checks may meet the same problem.
      if (std::ranges::find(found_, e.what()) == found_.end()) found_.emplace_back(e.what());
    }
  }
  /// Throws one Error with all of them.
  void report() const {
    if (found_.empty()) return;
    if (found_.size() == 1) throw Error(found_[0]);
    std::string all = cat(found_.size(), " problems:");
    for (const std::string& problem : found_) all += "\n  " + problem;
    throw Error(all);
  }

 private:
  std::vector<std::string> found_;
};

/// Throws Error where the checkpoint to resume from is missing, or its rows were made of something else than
/// `dataset` is; warns where those of `validation` were. Null: unknown. What else is wrong in a checkpoint
/// shows when it is loaded.
void check_rows_of_checkpoint(const Recipe& recipe, const Dataset* dataset, const Validation* validation) {
  const CheckpointSection& section = recipe.checkpoint;
  const auto from = Checkpoints(section, describe(recipe)).find();
  const bool resumes = from && (section.enabled || section.restore_from);
  if (!resumes || section.finetune) return;
  RunState written;
  try {
    written = read_run_state(*from / "state.json");
  } catch (const Error&) {
    return;
  }
  if (validation) warn_of_other_rows(recipe, written.validation_rows, validation->rows());
  if (!dataset || !section.load_data || written.rows.empty()) return;
  try {
    want_same_rows(written.rows, row_inputs(recipe, *recipe.dataset, *dataset));
  } catch (const Error& e) {
    fail("cannot resume from ", from->string(), ": ", e.what());
  }
}

}  // namespace

void check_training(const Recipe& recipe, std::int64_t ranks, Device device, const std::string& gpu) {
  const ModelSection& section = *recipe.model;
  Problems problems;
  std::optional<OpenedModel> source;
  std::optional<ModelSetup> setup;
  std::optional<Stack> model;
  problems.collect([&] {
    source.emplace(section.path, config_of_model(recipe));
    setup = recipe_setup(recipe, *source);
  });
  if (setup) {
    if (section.source == ModelSource::pretrained)
      problems.collect([&] { check_model_files(source->weights(), *setup); });
    problems.collect([&] { model.emplace(*setup, weight_dtype(recipe, setup->config), Device::meta); });
    if (model) problems.collect([&] { group_rule(*recipe.optimizer, model->parameters()); });
  }
  RankSizes sizes;  // one rank, where the recipe does not fit the number of ranks
  problems.collect([&] {
    sizes = rank_sizes(recipe.distributed, ranks);
    if (ranks > 1 && setup)
      plan_model(recipe.distributed, resolve_environment(recipe).settings, sizes, *setup);
  });
  std::optional<Tokenizer> tokenizer;
  std::optional<Loader> loader;
  problems.collect([&] {
    tokenizer = recipe_tokenizer(recipe, *recipe.dataset);
    loader.emplace(
        recipe_dataset(recipe, *recipe.dataset, tokenizer, source ? &source->config() : nullptr, true),
        loader_options(recipe, 0, sizes.dp));
  });
  if (loader)
    problems.collect([&] {
      make_schedule(recipe, schedule_steps(recipe, sizes.dp, loader->batches_per_epoch()).total_steps);
    });
  if (loader && setup)
    problems.collect(
        [&] { check_vocabulary(*recipe.dataset, tokenizer, loader->dataset(), setup->config.vocab_size); });
  if (setup && tokenizer)
    problems.collect([&] {
      if (const auto end = recipe_end_of_turn(recipe, *recipe.dataset, *tokenizer, setup->config))
        log_warning(end->warning(*recipe.dataset, *tokenizer));
    });
  std::optional<Validation> validation;
  if (setup) problems.collect([&] { validation.emplace(recipe, setup->config); });
  if (!is_benchmark(recipe))
    problems.collect([&] { check_run_directory(recipe.checkpoint.checkpoint_dir); });
  else if (const auto& path = recipe.benchmark.json_output_path; path && *path)
    problems.collect([&] { check_output_place(**path); });
  if (const auto tensorboard = tensorboard_options(recipe))
    problems.collect([&] {
      check_folder_for_files("tensorboard.tensorboard_dir", tensorboard->folder);
      const std::filesystem::path& run = recipe.checkpoint.checkpoint_dir;
      if (std::filesystem::is_directory(tensorboard->folder))
        const TensorboardFolder own(tensorboard->folder, run);
    });
  problems.collect([&] {
    check_rows_of_checkpoint(recipe, loader ? &loader->dataset() : nullptr,
                             validation ? &*validation : nullptr);
  });
  problems.report();
  if (recipe.peft)
    for (const std::string& warning : recipe_adapters(recipe, *setup).warnings) log_warning(warning);
  if (ranks > 1) log_info(sizes.text);
  for (const std::string& line :
       tensor_plan_lines(recipe.distributed, resolve_environment(recipe).settings, *setup))
    log_info(line);
  if (!is_benchmark(recipe) && recipe.checkpoint.enabled)
    log_info(recipe.checkpoint.checkpoint_dir, ": ", kind_of_links(recipe.checkpoint.checkpoint_dir));
  const auto memory = memory_of_run(recipe, *model, loader->dataset(), sizes, device);
  log_info(memory_sentence(memory, sizes, device));
  if (const auto copy = host_copy_bytes(recipe, *model, loader->dataset(), sizes, device); copy > 0)
    log_info("a checkpoint is first copied to the host's memory (checkpoint.is_async): ", bytes_text(copy),
             ranks > 1 ? " on each rank at most" : "");
  if (!gpu.empty()) {
    const GpuFit fit = fit_of_run(memory, gpu_rates(gpu));
    if (fit.fits()) return log_info(to_string(fit, gpu));
    return log_warning(to_string(fit, gpu), ". ", memory_advice(recipe, model->dtype(), sizes));
  }
  if (const std::string warning = memory_warning(recipe, memory, model->dtype(), sizes, device);
      !warning.empty())
    log_warning(warning);
}

}  // namespace nemocube
