#pragma once
#include "core/kernel.h"
#include "ops/permute/permute.h"

/// Kernels of permute and unpermute, in f32 arithmetic (f64 for f64). Outputs may be wider than inputs (the
/// f32 gradient of a bf16 leaf). The tokens are divided among the threads. A choice without a row (slot -1) adds
/// nothing, and its weight has the gradient 0.
namespace nemocube {

namespace cpu {
/// y[r, :] = x[source[r], :]
void gather_rows(const Tensor& y, const Tensor& x, const Permutation& p);
/// y[t, :] = (or +=) sum over j of weights[t, j] rows[slot[t, j], :]; undefined weights count as ones.
void combine_rows(const Output& y, const Tensor& rows, const Tensor& weights, const Permutation& p);
/// drows[slot[t, j], :] = (or +=) weights[t, j] dy[t, :]
void spread_rows(const Output& drows, const Tensor& dy, const Tensor& weights, const Permutation& p);
/// dweights[t, j] = (or +=) <dy[t, :], rows[slot[t, j], :]>
void dot_rows(const Output& dweights, const Tensor& dy, const Tensor& rows, const Permutation& p);

}  // namespace cpu

inline const Kernel<cpu::gather_rows> gather_rows("permute/gather_rows");
inline const Kernel<cpu::combine_rows> combine_rows("permute/combine_rows");
inline const Kernel<cpu::spread_rows> spread_rows("permute/spread_rows");
inline const Kernel<cpu::dot_rows> dot_rows("permute/dot_rows");

}  // namespace nemocube
