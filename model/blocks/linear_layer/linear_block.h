#pragma once
#include "model/blocks/block_kind.h"

namespace nemocube {

/// One square linear layer without bias in the place of a mixer: pruned models have it where a search found
/// attention or an MLP to be worth no more (DeciLM).
extern const BlockKind linear_block;

}  // namespace nemocube
