#pragma once
#include "model/blocks/block_kind.h"

namespace nemocube {

/// Causal grouped-query attention without position embeddings (docs/attention.md).
extern const BlockKind attention_block;

}  // namespace nemocube
