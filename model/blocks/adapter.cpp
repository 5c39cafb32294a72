#include "model/blocks/adapter.h"

namespace nemocube {
namespace {

std::vector<std::int64_t> numbers_of(const std::vector<Range>& ranges, std::int64_t all) {
  std::vector<std::int64_t> numbers;
  for (const Range& range : ranges)
    for (std::int64_t i = range.begin; i < range.end; ++i) numbers.push_back(i);
  if (std::ssize(numbers) == all) numbers.clear();
  return numbers;
}

}  // namespace

Adapter::Adapter(const ModelSetup& setup, ParameterStore& parameters, const TensorName& module) {
  const LoraAdapters& lora = setup.choices.lora;
  const auto found = lora.modules.find(module);
  if (found == lora.modules.end()) return;
  a_ = &parameters.get(module / lora_a_weight);
  b_ = &parameters.get(module / lora_b_weight);
  scale_ = found->second.scale();
  if (lora.dropout == 0) return;
  dropout_ = {.probability = lora.dropout,
              .position = lora.dropout_position,
              .stream = RandomStream(lora.dropout_seed, setup.config.text(module))};
  const bool pre = lora.dropout_position == DropoutPosition::pre;
  const Shard& wide = pre ? a_->shard : b_->shard;
  const int dim = pre ? wide.global_shape().ndim() - 1 : 0;
  columns_ = numbers_of(wide.ranges()[static_cast<std::size_t>(dim)], wide.global_shape()[dim]);
}

LoraBranch Adapter::branch() const { return {a_->var(), b_->var(), scale_}; }

LoraBranch Adapter::branch(const Sequences& whole, Device device) const {
  LoraBranch branch = this->branch();
  if (dropout_.probability == 0 || whole.numbers().empty()) return branch;
  branch.dropout = dropout_;
  branch.dropout.row_numbers = (rows_ ? rows_(whole) : whole).row_numbers_on(device);
  branch.dropout.column_numbers = columns(device);
  return branch;
}

Tensor Adapter::columns(Device device) const {
  if (columns_.empty()) return {};
  if (!columns_on_device_ || columns_on_device_.device() != device)
    columns_on_device_ = Tensor::from(columns_, {std::ssize(columns_)}).to(device);
  return columns_on_device_;
}

}  // namespace nemocube
