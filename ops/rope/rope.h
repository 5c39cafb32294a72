#pragma once
#include <cstdint>
#include <vector>

#include "core/autograd.h"
#include "ops/sequences.h"

namespace nemocube {

/// How fast each pair of channels of a head turns with the position.
struct RotaryFrequencies {
  std::vector<double> inverse{};  ///< f_i of n / 2 pairs: radians for each position; may be 0
  double attention_factor = 1;    ///< A: factor of rotated channels of q and of k; A^2 of the scores
  bool operator==(const RotaryFrequencies&) const = default;
};

struct RotatedHeads {
  Var q, k;
};

/// Rotary position embedding of queries and keys. A row at position p has the angles p f_i. Of each head the
/// first n = 2 |f| channels are two halves [a | b], so that channel i turns with channel n / 2 + i:
///     C_i = A cos(p f_i),  Z_i = A sin(p f_i)
///     a'_i = a_i C_i - b_i Z_i,   b'_i = b_i C_i + a_i Z_i
/// Channels from n on are kept. This is the layout of Hugging Face's rotate_half; the paper pairs neighbours.
///
/// shapes     q, q' [T, heads * head_dim]; k, k' [T, kv_heads * head_dim]; n <= head_dim
/// positions  Sequences::positions(), of each row in its sequence: packed sequences, a rank's rows of longer
///            sequences (context parallelism) and rows that continue a sequence (decoding) turn as they would
///            in the whole sequence alone
/// layout     rows of q and k may be strided; new results are contiguous
/// dtypes     q, k alike: f32, f64 (CPU) or bf16. Angles, cos and sin in f64; C and Z rounded once, to f32
///            (f64 with f64). Products and sums in f32 (f64), rounded once to the dtype
/// numerics   Hugging Face rounds f_i and angles to f32, then C and Z to the dtype: near position 131071 its
///            angles are off by up to 0.005
/// devices    CPU, CUDA
/// memory     q' overwrites q when no other tensor shares the storage of q; likewise k' and k. C and Z are a
///            table [T, n], which `sequences` keeps for all layers that have the same frequencies;
///            Sequences::become() fills it again
/// gradient   of dq' and of dk', the rotation with -Z instead of Z, in place where the storage is not shared.
///            Keeps the table
/// repeat     a sequence gives the same bits alone and packed with others, on any number of threads
/// errors     q or k not of two dimensions, of no floating dtype, of different dtypes or rows, of a width
///            that is no multiple of head_dim; head_dim < 1; n > head_dim; f_i or A not finite; sequences
///            that do not cover the rows
/// source     "RoFormer: Enhanced transformer with rotary position embedding" (Su et al., 2021)
RotatedHeads rope(Context& ctx, Var q, Var k, std::int64_t head_dim, const RotaryFrequencies& frequencies,
                  const Sequences& sequences);

}  // namespace nemocube
