#pragma once
#include "core/autograd.h"

namespace nemocube {

/// y_r = x_r sigmoid(g_r) for every row x_r, with one number g_r of each row: the gate of an MoE block's
/// shared expert.
///
/// shapes     x, y [..., n]; gate [..., 1]; any of the dimensions may be 0
/// layout     rows of x and of gate may be strided; y is contiguous
/// dtypes     x, gate and y alike: f32, f64 (CPU) or bf16; bf16 is computed in f32 and rounded once
/// devices    CPU, CUDA
/// memory     y overwrites x when no gradient of gate is recorded and no other tensor shares the storage of x
/// gradient   dx = dy s,   dgate_r = s (1 - s) sum_c dy_rc x_rc   with s = sigmoid(g_r)
///            Keeps gate, and x where gate wants a gradient. dx overwrites x when no other tensor shares the
///            storage as the closure runs, else dy under the same condition. The sum has a fixed order
/// accuracy   In f32 the errors of s and of s (1 - s) are below 4e-7. Where g is infinite s is 0 or 1. NaN in
///            gate gives NaN in the row of y, dx and dgate
/// errors     Error when x or gate is undefined, x is not of a floating dtype or has no dimension, the dtypes
///            differ, or gate does not have one number for each row of x
/// source     `shared_expert_gate` of Qwen 2 MoE and its successors (Hugging Face Transformers)
Var row_gate(Context& ctx, Var x, Var gate);

}  // namespace nemocube
