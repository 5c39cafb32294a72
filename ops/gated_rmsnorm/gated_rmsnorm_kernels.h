#pragma once
#include "core/kernel.h"
#include "ops/gated_rmsnorm/gated_rmsnorm.h"

/// Kernels behind ops/gated_rmsnorm/gated_rmsnorm.h: arguments checked by the caller. `inv_rms` is [T,
/// groups] in the accumulation dtype. `inv_rms`, `out` and sums over groups are contiguous. With the
/// norm first, g is y, u is weight silu(z) dout, and the weight may have the channels of one group.
namespace nemocube {

/// Sums over groups that span ranks.
struct GroupSums {
  Tensor values;  ///< [T, groups] in the accumulation dtype; undefined: groups are whole, the kernel sums
  std::int64_t ranks = 1;  ///< a group has `ranks` times as many channels as y has of it
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(values);
  }
};

namespace cpu {

/// squares [T, groups] = sum of g^2 over the channels of y.
void gated_rmsnorm_squares(const Tensor& squares, const Tensor& y, const Tensor& z, GateOrder order);

void gated_rmsnorm_forward(const Tensor& out, const Tensor& inv_rms, const Tensor& y, const Tensor& z,
                           const Tensor& weight, double eps, const GroupSums& squares, GateOrder order);

/// dots [T, groups] = sum of u g r over the channels of y.
void gated_rmsnorm_dots(const Tensor& dots, const Tensor& dout, const Tensor& y, const Tensor& z,
                        const Tensor& weight, const Tensor& inv_rms, GateOrder order);

/// dy and dz like y; dweight [segments, d] holds one partial sum for each segment of ops/reduce.h. Each may
/// be undefined. dy may be dout.
void gated_rmsnorm_backward(const Tensor& dy, const Tensor& dz, const Tensor& dweight, const Tensor& dout,
                            const Tensor& y, const Tensor& z, const Tensor& weight, const Tensor& inv_rms,
                            const GroupSums& dots, GateOrder order);

}  // namespace cpu

inline const Kernel<cpu::gated_rmsnorm_squares> gated_rmsnorm_squares("gated_rmsnorm/squares");
inline const Kernel<cpu::gated_rmsnorm_forward> gated_rmsnorm_forward("gated_rmsnorm/forward");
inline const Kernel<cpu::gated_rmsnorm_dots> gated_rmsnorm_dots("gated_rmsnorm/dots");
inline const Kernel<cpu::gated_rmsnorm_backward> gated_rmsnorm_backward("gated_rmsnorm/backward");

}  // namespace nemocube
