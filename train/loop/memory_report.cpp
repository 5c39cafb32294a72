#include "train/loop/memory_report.h"

#include <algorithm>
#include <functional>

#include "core/memory_limit.h"
#include "data/hf/hf_config.h"
#include "train/datasets/recipe_datasets.h"
#include "train/loop/from_recipe.h"

namespace nemocube {

std::vector<MemoryItem> memory_of_run(const Recipe& recipe, const NemotronH& model, const Dataset& dataset) {
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
  std::vector<MemoryItem> items = state_memory(model.parameters(), optimizer_options(*recipe.optimizer));
  items.push_back({"activations about", activation_memory(model.config(), model.dtype(), largest)});
  return items;
}

std::string memory_sentence(const std::vector<MemoryItem>& items) {
  return cat("training needs about ", bytes_text(total_bytes(items)), " of memory: ", describe(items));
}

std::string explain_memory(const Recipe& recipe) noexcept try {
  const NemotronHConfig config = read_hf_config(recipe.model->path);
  const NemotronH model(config, weight_dtype(recipe, config), Device::meta);
  const auto tokenizer = recipe_tokenizer(recipe, *recipe.dataset);
  const auto dataset = recipe_dataset(recipe, *recipe.dataset, tokenizer, true);
  return memory_sentence(memory_of_run(recipe, model, *dataset));
} catch (...) {
  return {};
}

}  // namespace nemocube
