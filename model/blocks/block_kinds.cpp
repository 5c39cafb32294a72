#include "model/blocks/block_kinds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>

#include "core/allocator.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/gated_delta_net/gated_delta_net_block.h"
#include "model/blocks/linear_layer/linear_block.h"
#include "model/blocks/mamba/mamba_block.h"
#include "model/blocks/mlp/mlp_block.h"
#include "model/blocks/moe/moe_block.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"

namespace nemocube {

std::span<const BlockKind> block_kinds() {
  static const std::array all{mamba_block,           attention_block,      mlp_block, moe_block, linear_block,
                              gated_delta_net_block, per_layer_input_block};
  return all;
}

std::optional<BlockKind> find_block_kind(char letter) {
  for (const BlockKind kind : block_kinds())
    if (kind->letter == letter) return kind;
  return std::nullopt;
}

std::optional<BlockKind> find_block_kind(std::string_view name) {
  for (const BlockKind kind : block_kinds())
    if (name == kind->name || (kind->alias && name == kind->alias)) return kind;
  return std::nullopt;
}

const BlockTensor* find_block_tensor(BlockKind kind, std::string_view member) {
  const auto row = std::ranges::find(kind->tensors(), member, &BlockTensor::name);
  return row == kind->tensors().end() ? nullptr : &*row;
}

std::string_view module_of(const BlockTensor& tensor) {
  if (!tensor.cut.module.empty()) return tensor.cut.module;
  for (const std::string_view ending : {".weight", ".bias"})
    if (tensor.name.ends_with(ending)) return tensor.name.substr(0, tensor.name.size() - ending.size());
  return tensor.name;
}

char letter_of(BlockKind kind) { return kind->letter; }
std::string_view name_of(BlockKind kind) { return kind->name; }
std::ostream& operator<<(std::ostream& out, BlockKind kind) { return out << kind->name; }

std::int64_t TensorBytes::stored(double numbers) const {
  return cpu_block_bytes(static_cast<std::int64_t>(std::ceil(numbers)) * stored_size);
}
std::int64_t TensorBytes::wide(double numbers) const {
  return cpu_block_bytes(static_cast<std::int64_t>(std::ceil(numbers)) * wide_size);
}

}  // namespace nemocube
