#pragma once
#include "model/blocks/block_kind.h"

namespace nemocube {

/// A mixer that adds rows made from the tokens themselves, of each layer its own (docs/gemma4.md).
extern const BlockKind per_layer_input_block;

}  // namespace nemocube
