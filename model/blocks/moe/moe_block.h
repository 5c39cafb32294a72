#pragma once
#include "model/blocks/block_kind.h"

namespace nemocube {

/// A mixture of squared-ReLU experts with a shared expert (docs/moe.md).
extern const BlockKind moe_block;

}  // namespace nemocube
