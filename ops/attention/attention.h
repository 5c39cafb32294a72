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
  std::int64_t window = 0;       ///< with causal: keys that a query sees at most, the last ones; 0: no limit
  std::int64_t query_block = 1;  ///< B, with causal: queries stand together, B by B; 1: each for itself
  double softcap = 0;            ///< c of scores c tanh(S / c); 0: none
  Tensor slopes = {};            ///< [heads] m_h of ALiBi, of these query heads; undefined: none
  Tensor query_scale = {};       ///< [T] s_i, a factor of the scores of each row of q; undefined: 1
};

/// Softmax attention within each sequence, without position embedding:
///     Y_ij = scale q_i . k_j        for the keys j that query i may see
///     lse_i = log sum_j e^Y_ij      P_ij = e^(Y_ij - lse_i)      o_i = sum_j P_ij v_j
/// Sequence n of q attends to sequence n of k and v. With d = kv length - q length, query i stands at key
/// i + d: where there are more keys than queries, the queries are the last rows (decoding with a cache of
/// keys and values). With `causal` it sees key j when j <= i + d, with a `window` W besides when
/// j > i + d - W. With a `query_block` B all queries of a block, which begins at a multiple of B, stand where
/// its first one does: i is floor(i / B) B then, here and in the slopes. A query that sees no key gives 0.
/// Keys outside of the windows are read only where they share a tile with keys inside.
///
/// The other options change the scores of query head h in this order:
///     S_ij = scale s_i q_i . k_j                            s: query_scale
///     Z_ij = c tanh(S_ij / c), or S_ij                      c: softcap
///     Y_ij = Z_ij - m_h (i + d - j)                         m: slopes
/// Slopes and query_scale are constants, without a gradient.
///
/// shapes     q, o [T, heads * head_dim]; k, v [Tk, kv_heads * head_dim]; lse [T, heads]; slopes [heads];
///            query_scale [T]
/// layout     rows of q, k, v may be strided; o is contiguous
/// dtypes     q, k, v, o alike: f32, f64 (CPU) or bf16; scores, softmax and sums in f32 (f64 with f64),
///            results rounded once; lse and query_scale f32 (f64 with f64); slopes f32
/// rounding   CPU, and CUDA with f32: as above. CUDA with bf16 and a head_dim of 64 to 256 that is a multiple
///            of 16 (tensor cores): P and dS are also rounded to bf16, as operands of the products with v,
///            do, k and q (for dk dS s_i is); scores, softmax and sums stay in f32, tanh within 2^-21. Other
///            head_dims in bf16 on CUDA: as on the CPU
/// gradient   with delta_i = do_i . o_i and dS_ij = P_ij (do_i . v_j - delta_i) (1 - tanh(S_ij / c)^2), the
///            last factor only with softcap:
///            dq_i = scale s_i sum_j dS_ij k_j,  dk_j = scale sum_i s_i dS_ij q_i,  dv_j = sum_i P_ij do_i,
///            dk and dv summed in f32 over the query heads of a kv head, in a fixed order. Keeps q, k, v, o
///            and lse; P is computed again
/// repeat     a sequence gives the same bits alone and packed with others, on any number of threads
/// errors     shapes, dtypes, heads not a multiple of kv_heads, sequences that do not cover the rows or
///            differ in number; scale or softcap negative or not finite; window negative, or without causal;
///            query_block below 1, or above 1 without causal; shape, dtype or device of slopes and of
///            query_scale
/// variants   "tiled": online softmax, never more than a tile of scores; "plain": whole rows of scores
/// source     "FlashAttention-2" (Dao, 2023) for the tiling and for the backward pass from lse; window:
///            "Longformer" (Beltagy et al., 2020) as transformers counts it, the query's own key among the W;
///            softcap: "Gemma 2" (2024); slopes: "Train Short, Test Long" (Press et al., 2022); query_scale:
///            transformers, ministral3
Var attention(Context& ctx, const Var& q, const Var& k, const Var& v, const AttentionOptions& options,
              const Sequences& q_seqs, const Sequences& kv_seqs);

}  // namespace nemocube
