#pragma once
#include "model/config.h"

namespace nemocube {

/// Floating-point operations of one forward pass per token, in sequences of `sequence_length` tokens. A
/// multiply-add counts as two. Counted are the projections, the chunked scan with dense Q x Q tiles, the
/// causal half of attention, the k chosen experts and the router, the head (BlockType::add_work), and low-rank adapters.
/// Elementwise work is not counted. Training costs three times as much; recomputation is not counted.
///
/// Each depth of multi-token prediction that the run trains (NemotronHConfig::mtp) has its blocks, its joining projection and
/// the head once more.
struct ForwardFlops {
  double blocks = 0, head = 0;
  double total() const { return blocks + head; }
};
ForwardFlops forward_flops_per_token(const NemotronHConfig& config, double sequence_length);
/// The same of one block.
double forward_flops_per_token(BlockKind kind, const BlockConfig& config, double sequence_length);

/// Forward and backward of a training step per token: three times the forward pass where everything is trained. A frozen weight
/// has no product for its gradient, and blocks that come before everything that is trained have no backward pass.
ForwardFlops training_flops_per_token(const NemotronHConfig& config, double sequence_length);

/// Floating-point operations of one training step over so many sequences, as NeMo AutoModel's benchmark counts them
/// (nemo_automodel/components/utils/flops_utils.py), to compare with its figures. It differs from three times
/// forward_flops_per_token(): attention has the width hidden_size instead of heads x head_dim, a `-` block three
/// matrices instead of two, and the scan 7 d N operations a token whatever the chunk. Published models come out at 0.98
/// to 1.28 times that.
double automodel_step_flops(const NemotronHConfig& config, std::int64_t sequences,
                            std::int64_t sequence_length);

}  // namespace nemocube
