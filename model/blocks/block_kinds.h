#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "model/blocks/block_type.h"

namespace nemocube {

/// Every kind of block that a config may name.
std::span<const BlockKind> block_kinds();
std::optional<BlockKind> find_block_kind(char letter);
/// By name or alias.
std::optional<BlockKind> find_block_kind(std::string_view name);

/// The row of the tensor of this canonical name, of whatever kind of block; null for a name that no kind has.
const BlockTensor* find_block_tensor(std::string_view name);

}  // namespace nemocube
