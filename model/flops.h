#pragma once
#include "model/config.h"

namespace nemocube {

/// Floating-point operations of one forward pass per token, in sequences of `sequence_length` tokens. A
/// multiply-add counts as two. Counted are the projections, the chunked scan with dense Q x Q tiles, the
/// causal half of attention, the k chosen experts and the router, and the head. Elementwise work is not
/// counted. Training costs three times as much; recomputation is not counted.
struct ForwardFlops {
  double mamba = 0, attention = 0, mlp = 0, moe = 0, head = 0;
  double total() const { return mamba + attention + mlp + moe + head; }
};
ForwardFlops forward_flops_per_token(const NemotronHConfig& config, double sequence_length);

}  // namespace nemocube
