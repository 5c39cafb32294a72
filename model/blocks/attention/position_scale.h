#pragma once
#include <cstdint>

#include "ops/sequences.h"

namespace nemocube {

/// Queries grow with their position p in the sequence, after the rotary embedding: by
/// 1 + beta ln(1 + floor(p / positions)).
/// Source: transformers, ministral3 (llama_4_scaling_beta, original_max_position_embeddings).
struct PositionScale {
  double beta = 0;  ///< 0: they do not
  std::int64_t positions = 0;
  bool operator==(const PositionScale&) const = default;
};

/// The factor of each row, [T] of `dtype`, f32 or f64. `rows` keeps the factors for all layers;
/// Sequences::become() fills them again. Undefined where beta is 0. With `halves` the positions of sequence
/// 2n + 1 go on behind the last row of sequence 2n, as those of a text that is there twice do in
/// Nemotron-Labs-Diffusion.
Tensor query_scales(const PositionScale& scale, const Sequences& rows, DType dtype, Device device,
                    bool halves = false);

}  // namespace nemocube
