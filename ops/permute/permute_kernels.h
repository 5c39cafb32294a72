#pragma once
#include "core/kernel.h"
#include "ops/permute/permute.h"

/// Kernels behind ops/permute/permute.h. Those that make a permutation work on whole numbers alone. Those of permute and
/// unpermute are in f32 arithmetic (f64 for f64). Outputs may be wider than inputs (the
/// f32 gradient of a bf16 leaf). The tokens are divided among the threads. A choice without a row (slot -1) adds
/// nothing, and its weight has the gradient 0.
namespace nemocube {

namespace cpu {
/// offsets [n + 1] of the rows of the experts in `here`, n of them, among experts [T, k], each in [0, expert_count).
void expert_offsets(const Tensor& offsets, const Tensor& experts, std::int64_t expert_count, Range here);
/// Sets p.source and p.slot, of [T, k], from p.offsets.
void place_rows(const Permutation& p, const Tensor& experts, Range here);
/// Sets p as merge_by_expert() does.
void merge_by_expert(const Permutation& p, const Tensor& ends, Range here);
/// y[r, :] = x[source[r], :]
void gather_rows(const Tensor& y, const Tensor& x, const Permutation& p);
/// y[t, :] = (or +=) sum over j of weights[t, j] rows[slot[t, j], :]; undefined weights count as ones.
void combine_rows(const Output& y, const Tensor& rows, const Tensor& weights, const Permutation& p);
/// drows[slot[t, j], :] = (or +=) weights[t, j] dy[t, :]
void spread_rows(const Output& drows, const Tensor& dy, const Tensor& weights, const Permutation& p);
/// dweights[t, j] = (or +=) <dy[t, :], rows[slot[t, j], :]>
void dot_rows(const Output& dweights, const Tensor& dy, const Tensor& rows, const Permutation& p);

}  // namespace cpu

inline const Kernel<cpu::expert_offsets> expert_offsets("permute/expert_offsets");
inline const Kernel<cpu::place_rows> place_rows("permute/place_rows");
inline const Kernel<cpu::merge_by_expert> merge_by_expert_kernel("permute/merge_by_expert");
inline const Kernel<cpu::gather_rows> gather_rows("permute/gather_rows");
inline const Kernel<cpu::combine_rows> combine_rows("permute/combine_rows");
inline const Kernel<cpu::spread_rows> spread_rows("permute/spread_rows");
inline const Kernel<cpu::dot_rows> dot_rows("permute/dot_rows");

}  // namespace nemocube
