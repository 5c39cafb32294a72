#pragma once
#include "model/config.h"

namespace nemocube {

/// Floating-point operations of one forward pass per token, in sequences of `sequence_length` tokens. A
/// multiply-add counts as two. Counted are the projections, the chunked scan with dense Q x Q tiles, the
/// causal half of attention, the k chosen experts and the router, the head (BlockType::add_work), and
/// low-rank adapters. Elementwise work is not counted. Training costs three times as much; recomputation is
/// not counted.
///
/// Each depth of multi-token prediction that the run trains (ModelChoices::mtp) has its blocks, its joining
/// projection and the head once more.
struct ForwardFlops {
  double blocks = 0, head = 0;
  double total() const { return blocks + head; }
};
ForwardFlops forward_flops_per_token(const ModelSetup& setup, double sequence_length);
/// Operations of one block.
double forward_flops_per_token(BlockKind kind, const BlockConfig& config, double sequence_length);

/// Forward and backward of a training step per token: three times the forward pass where everything is
/// trained. A frozen weight has no product for its gradient, and blocks that come before everything that is
/// trained have no backward pass.
ForwardFlops training_flops_per_token(const ModelSetup& setup, double sequence_length);

}  // namespace nemocube
