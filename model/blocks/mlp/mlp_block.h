#pragma once
#include "model/blocks/block_kind.h"

namespace nemocube {

/// An MLP with a squared ReLU, or a gated one (docs/mlp.md).
extern const BlockKind mlp_block;

}  // namespace nemocube
