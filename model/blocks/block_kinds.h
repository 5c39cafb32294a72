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

/// The row of the tensor of this name below a mixer of the kind; null for a name that the kind does not have.
const BlockTensor* find_block_tensor(BlockKind kind, std::string_view member);

}  // namespace nemocube
