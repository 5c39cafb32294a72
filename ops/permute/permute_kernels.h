#pragma once
#include "core/kernel.h"
#include "ops/permute/permute.h"

/// Kernels behind ops/permute/permute.h. Those that make a permutation work on whole numbers alone. Those of
/// permute and unpermute are in f32 arithmetic (f64 for f64). Outputs may be wider than inputs (the
/// f32 gradient of a bf16 leaf). The tokens are divided among the threads. A choice without a row (slot -1)
/// adds nothing, and its weight has the gradient 0.
///
/// On CUDA nobody sees mistakes in the numbers of experts and rows. Where there are fewer rows than a
/// permutation has room for, the others have the source -1, and gather_rows sets them to 0; choices of no
/// known expert, or beyond the room, have no row.
namespace nemocube {

namespace cpu {
/// offsets [n + 1] of the rows of the experts in `here`, n of them, among experts [T, k], each in [0,
/// expert_count).
void expert_offsets(const Tensor& offsets, const Tensor& experts, std::int64_t expert_count, Range here);
/// Sets p, which has R rows, as make_permutation() does.
void order_rows(const Permutation& p, const Tensor& experts, std::int64_t expert_count, Range here);
/// Sets p as merge_by_expert() does.
void merge_by_expert(const Permutation& p, const Tensor& ends, Range here);
/// y[r, :] = x[source[r], :]
void gather_rows(const Tensor& y, const Tensor& x, const Permutation& p);
/// y[t, :] = (or +=) sum over j of weights[t, j] rows[slot[t, j], :]; undefined weights count as ones.
void combine_rows(const Output& y, const Tensor& rows, const Tensor& weights, const Permutation& p);
/// drows[slot[t, j], :] = (or +=) weights[t, j] dy[t, :]
/// dweights[t, j] = (or +=) <dy[t, :], rows[slot[t, j], :]>
/// Either may be undefined.
void combine_rows_backward(const Output& drows, const Output& dweights, const Tensor& dy, const Tensor& rows,
                           const Tensor& weights, const Permutation& p);

}  // namespace cpu

inline const Kernel<cpu::expert_offsets> expert_offsets("permute/expert_offsets");
inline const Kernel<cpu::order_rows> order_rows("permute/order_rows");
inline const Kernel<cpu::merge_by_expert> merge_by_expert_kernel("permute/merge_by_expert");
inline const Kernel<cpu::gather_rows> gather_rows("permute/gather_rows");
inline const Kernel<cpu::combine_rows> combine_rows("permute/combine_rows");
inline const Kernel<cpu::combine_rows_backward> combine_rows_backward("permute/combine_rows_backward");

}  // namespace nemocube
