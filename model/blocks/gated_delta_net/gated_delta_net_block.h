#pragma once
#include "model/blocks/block_kind.h"

namespace nemocube {

/// Gated DeltaNet, the linear attention of Qwen 3.5 (docs/gated_delta_rule.md).
extern const BlockKind gated_delta_net_block;

}  // namespace nemocube
