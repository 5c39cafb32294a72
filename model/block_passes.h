#pragma once
#include <vector>

#include "model/config.h"
#include "model/parameters.h"

namespace nemocube {

/// The passes of a block in a model whose tensors ModelChoices::frozen are not trained.
struct BlockPass {
  bool backward;        ///< the block has a backward pass: the block or something before it is trained
  bool input_gradient;  ///< the gradient of the block's input is formed
};

/// The passes of the blocks of a chunk, in order, and behind them the pass of the final norm. A chunk that
/// does not begin with the embeddings forms the gradient of its input, which it sends on.
std::vector<BlockPass> block_passes(const ModelSetup& setup, const ModelChunk& chunk);

/// The passes of a depth of multi-token prediction.
struct DepthPasses {
  BlockPass join;                 ///< of eh_proj, behind the two norms and the embeddings
  std::vector<BlockPass> blocks;  ///< and behind them the pass of the last norm
};
/// Of each depth, in the chunk with the head.
std::vector<DepthPasses> mtp_passes(const ModelSetup& setup, const ModelChunk& chunk);

/// Whether some tensor of the mixer of `block`, block_name(i) or depth_name(i), is trained.
bool trains_mixer(const ModelSetup& setup, const TensorName& block, BlockKind kind);

}  // namespace nemocube
