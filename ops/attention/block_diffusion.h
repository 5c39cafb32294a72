#pragma once
#include "ops/attention/attention.h"

namespace nemocube {

/// Attention of block diffusion: each text of L rows is there twice, noised and clean, and both halves are
/// cut into blocks of B rows, the last of which may be shorter. With b(i) = floor(i / B) of row i of a half,
///     noised row i sees  noised row j  when b(j) = b(i)          its own block, both ways
///                        clean row j   when b(j) < b(i)          the blocks before
///     clean row i  sees  clean row j   when j <= i
/// Scores, weights and gradients are those of `attention` over the rows that are seen. No mask exists: three
/// calls of partial_attention have the three lines, the second of which is combined with the first by their
/// lse.
///
/// sequences  2n and 2n + 1 are the noised and the clean half of a text, of one length; a last one without a
///            partner is clean (rows without tokens, Sequences::with_capacity())
/// shapes     q, o [T, heads * head_dim]; k, v [T, kv_heads * head_dim]
/// options    as for `attention`; causal, without window, slopes and query_block
/// dtypes     as for `attention`; o, dq, dk and dv are summed in f32 (f64 with f64) and rounded once. Keeps
///            q, k, v, o and lse
/// repeat     a text gives the same bits alone and packed with others, on any number of threads
/// errors     as for `attention`; block below 1; options with a window, slopes, a query_block or not causal;
///            halves of different lengths
/// source     "Block Diffusion" (Arriola et al., 2025) for noised rows; clean rows are causal as in
///            Nemotron-Labs-Diffusion (docs/block_diffusion.md)
Var block_diffusion_attention(Context& ctx, const Var& q, const Var& k, const Var& v,
                              const AttentionOptions& options, std::int64_t block,
                              const Sequences& sequences);

}  // namespace nemocube
