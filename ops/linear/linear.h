#pragma once
#include "core/autograd.h"

namespace nemocube {

/// y = x W^T + b          y[t, o] = sum_i x[t, i] W[o, i] + b[o]
/// dx = dy W,  dW = dy^T x,  db = sum over rows of dy
///
/// shapes     x [..., in], weight [out, in], bias [out] or absent, y [..., out]; sizes may be 0
/// dtypes     all alike: f32, f64 or bf16; sums in f32 (f64 for f64), the bias added before the one rounding
/// layout     row stride of x and weight free
/// gradients  products are written straight to the gradient of a leaf; a gradient that is not wanted is not
///            computed. dx first; dW and db are weight work (Tape). Keeps x when the weight wants a gradient,
///            the weight when x wants one
/// errors     Error for shapes or dtypes that do not fit
Var linear(Context& ctx, const Var& x, const Var& weight, const Var& bias = {});

/// y = x + b in every row, for a bias that cannot join the product: x is a sum over devices.
/// shapes     x [..., out], bias [out]; dtypes alike: f32, f64 or bf16
/// backward   dx = dy, db = sum over rows of dy, which is weight work
/// errors     Error for shapes or dtypes that do not fit
Var add_bias(Context& ctx, const Var& x, const Var& bias);

/// The pieces, without a tape.
Tensor linear_forward(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
void linear_backward_input(const Output& dx, const Tensor& dy, const Tensor& weight);
void linear_backward_weight(const Output& dweight, const Tensor& dy, const Tensor& x);
void linear_backward_bias(const Output& dbias, const Tensor& dy);

}  // namespace nemocube
