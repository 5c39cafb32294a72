#pragma once
#include "model/blocks/block_kind.h"

namespace nemocube {

/// A squared-ReLU MLP (docs/mlp.md).
extern const BlockKind mlp_block;

}  // namespace nemocube
