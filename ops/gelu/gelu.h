#pragma once
#include "core/autograd.h"

namespace nemocube {

/// y = x/2 (1 + tanh(c (x + 0.044715 x^3))) with c = sqrt(2/pi), the activation of an MLP without a gate.
/// Hugging Face's ACT2FN calls it "gelu_new" and "gelu_pytorch_tanh".
///
/// shapes     x, y alike, any
/// layout     rows of x may be strided; y is contiguous
/// dtypes     f32, f64 (CPU) or bf16; bf16 is computed in f32 and rounded once
/// devices    CPU, CUDA
/// memory     y overwrites x when nothing is recorded and no other tensor shares the storage
/// gradient   dx = dy ((1 + t)/2 + x/2 (1 - t^2) c (1 + 3 * 0.044715 x^2)),   t the tanh
///            Keeps x. An operation that needs y in backward computes y again (GradNode::again), which costs
///            a forward pass and saves half of the memory. dx overwrites x when no other tensor shares the
///            storage as the closure runs, else dy under the same condition
/// accuracy   In f32 the error of y is below 4e-7 |x|, of the derivative below 6e-6. For x far from 0 y
///            is 0 or x, and the derivative 0 or 1, also where x is infinite. NaN in x gives NaN in y and dx
/// errors     Error when x is undefined or not of a floating dtype
/// source     "Gaussian error linear units" (Hendrycks and Gimpel, 2016), in the form with tanh
Var gelu(Context& ctx, Var x);

}  // namespace nemocube
