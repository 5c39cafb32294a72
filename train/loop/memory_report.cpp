#include "train/loop/memory_report.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>

#include "core/allocator.h"
#include "core/memory_limit.h"
#include "data/hf/hf_config.h"
#include "train/datasets/recipe_datasets.h"
#include "train/loop/from_recipe.h"
#include "train/loop/plan_model.h"
#include "train/plan/planned_load.h"
#include "train/plan/run_plan.h"

namespace nemocube {

namespace {

/// What a run holds besides tensors, as the limit counts it: code and data of libraries, the heap, and where
/// the limit counts untouched memory also the stacks of threads that have not started, and the room that the
/// allocator leaves free. The data set is loaded by now, so the heap holds it already.
std::int64_t besides_tensors() {
  const MemoryLimit limit = memory_limit();
  std::int64_t bytes = limit.used - allocator(Device::cpu).stats().reserved_bytes;
  if (limit.counts_untouched) {
    std::error_code error;
    const auto started = std::distance(std::filesystem::directory_iterator("/proc/self/task", error), {});
    pthread_attr_t attributes;
    std::size_t stack = 0;
    if (::pthread_getattr_default_np(&attributes) == 0) {
      ::pthread_attr_getstacksize(&attributes, &stack);
      ::pthread_attr_destroy(&attributes);
    }
    bytes += std::max<std::int64_t>(omp_get_max_threads() - started, 0) * static_cast<std::int64_t>(stack);
    bytes += cpu_headroom;
  }
  return std::max<std::int64_t>(bytes, 0);
}

}  // namespace

std::vector<MemoryItem> memory_of_run(const Recipe& recipe, const NemotronH& model, const Dataset& dataset,
                                      const RankPlan& ranks) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < dataset.size(); ++i) lengths.push_back(dataset.content_length(i));
  const auto rows =
      std::min(lengths.size(), static_cast<std::size_t>(loader_options(recipe, 0, 1).batch_size));
  const auto end = lengths.begin() + static_cast<std::ptrdiff_t>(rows);
  std::ranges::partial_sort(lengths, end, std::greater());
  const std::int64_t tokens = std::accumulate(lengths.begin(), end, std::int64_t{0});
  StepLoad load = planned_load(recipe, model, ranks.dp);
  load.microbatch = Sequences::uniform(1, tokens);
  RunPlan run(model.config(),
              plan_model(recipe.distributed, resolve_environment(recipe).settings, ranks, model.config()),
              load, optimizer_options(*recipe.optimizer));
  std::vector<MemoryItem> items;
  for (std::int64_t stage = 0; stage < ranks.grid.pp; ++stage) {  // the first rank of a stage has the most
    auto own = run.memory(static_cast<int>(stage * ranks.grid.ranks_of_stage()));
    if (total_bytes(own) > total_bytes(items)) items = std::move(own);
  }
  items.push_back({"libraries, data and threads about", besides_tensors()});
  return items;
}

std::string memory_sentence(const std::vector<MemoryItem>& items, const RankPlan& plan) {
  return cat("training needs about ", bytes_text(total_bytes(items)), " of memory",
             plan.grid.ranks() > 1 ? " on each rank" : "", ": ", describe(items));
}

std::string explain_memory(const Recipe& recipe, std::int64_t ranks) noexcept try {
  const NemotronHConfig config = read_hf_config(recipe.model->path);
  const NemotronH model(config, weight_dtype(recipe, config), Device::meta);
  const auto tokenizer = recipe_tokenizer(recipe, *recipe.dataset);
  const auto dataset = recipe_dataset(recipe, *recipe.dataset, tokenizer, true);
  const RankPlan plan = plan_ranks(recipe.distributed, ranks);
  return memory_sentence(memory_of_run(recipe, model, *dataset, plan), plan);
} catch (...) {
  return {};
}

}  // namespace nemocube
