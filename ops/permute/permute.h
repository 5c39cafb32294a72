#pragma once
#include <optional>

#include "core/autograd.h"
#include "core/shard.h"

/// Rows from token order to expert order and back. Each of T tokens chose k experts; its row appears once for
/// each choice, and the rows of one expert are consecutive. T k must be below 2^31. There are R = T k rows,
/// or fewer where only some of the experts are here.
namespace nemocube {

struct Permutation {
  /// [E + 1] i64: expert e holds rows [offsets[e], offsets[e + 1]); R is the last. Undefined: rows of no
  /// experts
  Tensor offsets;
  Tensor source;  ///< [R] i32: token of each row
  Tensor slot;    ///< [T, k] i32: row of token t's choice j; -1 where that expert is not here
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&offsets, &source, &slot}) fn(*t);
  }
};

/// experts [T, k] i32, each in [0, expert_count). The rows of an expert are in ascending (token, choice)
/// order. The host reads nothing. On the CPU an Error names the expert, token and choice when an expert is
/// out of range.
Permutation make_permutation(const Tensor& experts, std::int64_t expert_count);
/// The same with the rows of the experts in `here` alone, in offsets too: entry 0 is expert here.begin. Where
/// `here` is not all experts, and `rows`, which is R, is not known, the host reads R. Error also unless
/// 0 <= here.begin <= here.end <= expert_count; on the CPU also for other `rows`.
Permutation make_permutation(const Tensor& experts, std::int64_t expert_count, Range here,
                             std::optional<std::int64_t> rows = {});
/// Merges the rows of several sources. `ends` [sources, E] i64: source s has its rows by expert, and its
/// rows of expert e end before row ends[s, e]. This device has only rows of the experts in `here`, one
/// source after another: the T = R tokens, with k = 1. Their order becomes (expert, source), stable;
/// entry 0 of offsets is expert here.begin. Error unless 0 <= here.begin <= here.end <= E; on the CPU
/// also unless `ends` ascend and say R rows.
Permutation merge_by_expert(const Tensor& ends, Range here, std::int64_t rows);
/// The way back where each token has one row (k = 1): permute(permute(x, p), inverse(p)) = x. The rows of the
/// result belong to no experts. Error unless k = 1 and R = T.
Permutation inverse(const Permutation& permutation);

/// y[r, :] = x[source[r], :]
///
/// shapes     x [T, d] -> y [R, d]
/// dtypes     f32, f64 or bf16; y as x (exact copies)
/// layout     row stride of x free; y contiguous
/// backward   dx[t, :] = sum over j of dy[slot[t, j], :], in ascending j in f32 (f64 for f64), rounded once;
///            choices without a row add nothing
/// errors     Error unless x has as many rows as the permutation has tokens
/// repeat     same bits for any number of threads
Var permute(Context& ctx, const Var& x, const Permutation& permutation);

/// y[t, :] = sum over j of weights[t, j] rows[slot[t, j], :], choices without a row adding nothing
///
/// shapes     rows [R, d], weights [T, k] -> y [T, d]
/// dtypes     rows f32, f64 or bf16; weights f32 (f64 with f64); y as rows
/// arithmetic f32 (f64 for f64), ascending j, rounded once
/// layout     row strides free; y contiguous
/// backward   drows[slot[t, j], :] = weights[t, j] dy[t, :], rounded once;
///            dweights[t, j] = <dy[t, :], rows[slot[t, j], :]>, 0 without a row. Keeps rows and weights.
/// errors     Error for shapes or dtypes other than these
/// repeat     same bits for any number of threads
Var unpermute(Context& ctx, const Var& rows, const Var& weights, const Permutation& permutation);

}  // namespace nemocube
