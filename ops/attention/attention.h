#pragma once
#include "core/autograd.h"
#include "ops/sequences.h"

namespace nemocube {

struct AttentionOptions {
  std::int64_t heads = 0;     ///< query heads, a multiple of kv_heads
  std::int64_t kv_heads = 0;  ///< key and value heads; query head j reads kv head j / (heads / kv_heads)
  std::int64_t head_dim = 0;
  double scale = 0;  ///< of the scores; 0: head_dim^-0.5
  bool causal = true;
};

/// Softmax attention within each sequence, without position embedding:
///     S_ij = scale q_i . k_j        for the keys j that query i may see
///     lse_i = log sum_j e^S_ij      P_ij = e^(S_ij - lse_i)      o_i = sum_j P_ij v_j
/// Sequence n of q attends to sequence n of k and v. With `causal` query i sees key j when
/// j <= i + (kv length - q length): where there are more keys than queries, the queries are the last rows
/// (decoding with a cache of keys and values). A query that sees no key gives 0.
///
/// shapes     q, o [T, heads * head_dim]; k, v [Tk, kv_heads * head_dim]; lse [T, heads]
/// layout     rows of q, k, v may be strided; o is contiguous
/// dtypes     q, k, v, o alike: f32, f64 (CPU) or bf16; scores, softmax and sums in f32 (f64 with f64),
///            results rounded once; lse f32 (f64 with f64)
/// rounding   CPU, and CUDA with f32: as above. CUDA with bf16 and a head_dim of 64 to 256 that is a multiple
///            of 16 (tensor cores): P and dS are also rounded to bf16, as operands of the products with v,
///            do, k and q; scores, softmax and sums stay in f32. Other head_dims in bf16 on CUDA: as on the
///            CPU
/// gradient   with delta_i = do_i . o_i and dS_ij = P_ij (do_i . v_j - delta_i):
///            dq_i = scale sum_j dS_ij k_j,  dk_j = scale sum_i dS_ij q_i,  dv_j = sum_i P_ij do_i,
///            dk and dv summed in f32 over the query heads of a kv head, in a fixed order. Keeps q, k, v, o
///            and lse; P is computed again
/// repeat     a sequence gives the same bits alone and packed with others, on any number of threads
/// errors     shapes, dtypes, heads not a multiple of kv_heads, sequences that do not cover the rows or
///            differ in number, scale negative or not finite
/// variants   "tiled": online softmax, never more than a tile of scores; "plain": whole rows of scores
/// source     "FlashAttention-2" (Dao, 2023) for the tiling and for the backward pass from lse
Var attention(Context& ctx, const Var& q, const Var& k, const Var& v, const AttentionOptions& options,
              const Sequences& q_seqs, const Sequences& kv_seqs);

}  // namespace nemocube
