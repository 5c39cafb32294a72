#pragma once
#include "model/blocks/block_kind.h"

namespace nemocube {

/// Mamba-2: projections, a short convolution, the scan, a gated norm (docs/mamba2.md).
extern const BlockKind mamba_block;

}  // namespace nemocube
