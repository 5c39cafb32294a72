#pragma once
#include <cstdint>
#include <optional>

#include "data/loader/batch.h"
#include "model/choices.h"

namespace nemocube {

/// How a batch becomes one that a model learns to denoise (docs/block_diffusion.md).
struct Corruption {
  Paradigm paradigm = Paradigm::block_diff;  ///< bidirectional or block_diff
  std::int64_t mask_token = 0;               ///< stands in the place of a noised token
  double eps = 1e-3;                         ///< the least probability of noise
  /// Noise by blocks of so many tokens; absent: by sequences.
  std::optional<std::int64_t> block_size = {};
  double half_life_ratio = 0.25;  ///< of a block: the shorter, the more the noise prefers its end
  double weight = 1;              ///< alpha of the noised tokens' loss, above 0
  /// Each sequence is filled up to a multiple of this with `fill_token`, a target like others.
  std::int64_t fill_multiple = 1;
  std::int64_t fill_token = 0;
  std::optional<std::int64_t> longest = {};  ///< a sequence is filled up to so many tokens at most
  std::uint64_t seed = 0;
};

/// The corrupted batch. Each sequence of the batch is a text x of L tokens: its inputs, behind these its last
/// label where that is a target, then fill tokens. Tokens that a label of the batch names are targets, and
/// fill tokens are. Some targets are noised:
///     by sequences  p = eps + (1 - eps) u, and each target is noised with probability p
///     by blocks     of a block of n tokens p = eps + (1 - eps) u, and round(p n) tokens are chosen without
///                   replacement, token i with the weight e^(ln 2 (1 - p) i / (half_life_ratio block_size));
///                   the targets among them are noised
/// A sequence of the result is
///     bidirectional  x with mask_token in the place of noised tokens; their labels are the tokens themselves
///     block_diff     that (sequence 2n), then x itself (2n + 1), with the label x[t + 1] where x[t + 1] is a
///                    target
/// noised_weights are weight / p; label_tokens counts targets, noised_tokens noised ones.
///
/// All draws depend on the seed and the number of the sequence alone, so that they are the same on every
/// process grid and in a run that goes on. The sequences of the result are numbered again: the halves have
/// different numbers.
///
/// pre: the batch is numbered (numbered_without_padding()), and its label t is the token t + 1 or none
/// source: corrupt_uniform, corrupt_blockwise and DLLMCollator of NVIDIA-NeMo/Automodel, with other draws
TokenBatch corrupted(const TokenBatch& batch, const Corruption& corruption);

}  // namespace nemocube
