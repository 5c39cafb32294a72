#pragma once
#include "core/autograd.h"

namespace nemocube {

/// One bias-free linear layer for each group of rows (the experts of a mixture):
/// y[t] = W[e] x[t],  dx[t] = W[e]^T dy[t],  dW[e] = sum_t dy[t] x[t]^T,   offsets[e] <= t < offsets[e + 1]
///
/// shapes     x [R, in], weight [E, out, in], y [R, out]; offsets [E + 1] i64, ascending from 0 to R; on CUDA
///            they may end before R: y and dx of the rows from there on are left as they are. Groups may be
///            empty; their dW is zero
/// dtypes     x, weight, y alike: f32, f64 or bf16; sums in f32 (f64 for f64)
/// layout     row stride of x free
/// gradients  as for linear; an x that its operation can compute again is not kept (GradNode::again)
/// variants   grouped: a kernel for all groups, which reads `offsets` on the device.
///            products: a product of matmul() for each group. The host must know the offsets: on the CPU it
///            reads `offsets`, elsewhere it wants `host_offsets`, the same numbers in host memory, and throws
///            Error without them
/// errors     Error for shapes and dtypes that do not fit; on the CPU and for `products` also for such
///            offsets
/// host       reads nothing of the device
Var grouped_linear(Context& ctx, const Var& x, const Tensor& offsets, const Var& weight,
                   const Tensor& host_offsets = {});

/// The pieces, without a tape. With `host_offsets` by products, else grouped. Results of bf16 operands may be
/// f32.
Tensor grouped_linear_forward(const Tensor& x, const Tensor& offsets, const Tensor& weight,
                              const Tensor& host_offsets = {});
void grouped_linear_forward_into(const Output& y, const Tensor& x, const Tensor& offsets,
                                 const Tensor& weight, const Tensor& host_offsets = {});
void grouped_linear_backward_input(const Output& dx, const Tensor& dy, const Tensor& offsets,
                                   const Tensor& weight, const Tensor& host_offsets = {});
void grouped_linear_backward_weight(const Output& dweight, const Tensor& dy, const Tensor& offsets,
                                    const Tensor& x, const Tensor& host_offsets = {});
/// The offsets in host memory, for the pieces, where the variant chosen by
/// ctx wants them there; otherwise undefined.
Tensor grouped_linear_host_offsets(const Context& ctx, const Tensor& offsets, const Tensor& host_offsets);

}  // namespace nemocube
