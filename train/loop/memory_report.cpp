#include "train/loop/memory_report.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "core/allocator.h"
#include "core/memory_limit.h"
#include "data/hf/hf_config.h"
#include "train/datasets/recipe_datasets.h"
#include "train/loop/from_recipe.h"

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
                                      const RankPlan& plan) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < dataset.size(); ++i) lengths.push_back(dataset.content_length(i));
  const auto rows =
      std::min(lengths.size(), static_cast<std::size_t>(recipe.step_scheduler.local_batch_size));
  const auto end = lengths.begin() + static_cast<std::ptrdiff_t>(rows);
  std::ranges::partial_sort(lengths, end, std::greater());
  ActivationOptions largest;
  for (auto length = lengths.begin(); length != end; ++length) largest.tokens += *length;
  largest.checkpointing = recipe.distributed.activation_checkpointing;
  largest.loss_rows = recipe.loss.kind == LossKind::chunked ? recipe.loss.chunk_len : model.loss_chunk_rows;
  const DividedState division{plan.dp, plan.dp_shard, plan.options, grad_accumulation_steps(recipe, plan.dp)};
  std::vector<MemoryItem> items =
      state_memory(model.parameters(), optimizer_options(*recipe.optimizer), division);
  items.push_back({"activations about", activation_memory(model.config(), model.dtype(), largest)});
  items.push_back({"libraries, data and threads about", besides_tensors()});
  return items;
}

std::string memory_sentence(const std::vector<MemoryItem>& items, const RankPlan& plan) {
  return cat("training needs about ", bytes_text(total_bytes(items)), " of memory",
             plan.dp > 1 ? " on each rank" : "", ": ", describe(items));
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
