#pragma once
#include <cstdint>

#include "core/tensor.h"

namespace nemocube {

struct SamplingOptions {
  double temperature = 0;  ///< 0: greedy (lowest id on a tie)
  std::int64_t top_k = 0;  ///< keep the k most likely tokens, the lower id on a tie; 0: all
  double top_p = 1;        ///< then keep the fewest tokens whose probabilities add up to p, at least one
};

/// One token id of each row of logits: softmax(logits / temperature), restricted to the kept tokens, at the
/// point `uniform` of its cumulative distribution in the order of falling probability.
///
/// shapes     logits [rows, vocabulary] f32, uniform [rows] f64 in (0, 1), result [rows] i64
/// result     -1 for a row with a logit that is not finite
/// arithmetic probabilities and their sums in f64. Devices add in different orders: where `uniform` lies
///            within rounding of the border between two tokens, devices may draw different
///            tokens. Greedy ids are the same everywhere
/// repeat     same device, logits and uniform: same ids
/// errors     Error for shapes, dtypes or options that do not fit: temperature < 0, top_k < 0, top_p outside
///            (0, 1]
/// source     Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020 (top-p)
Tensor sample_tokens(const Tensor& logits, const SamplingOptions& options, const Tensor& uniform);

}  // namespace nemocube
