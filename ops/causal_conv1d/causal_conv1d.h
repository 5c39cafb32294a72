#pragma once
#include "core/autograd.h"
#include "ops/sequences.h"

namespace nemocube {

/// Depthwise causal convolution along each sequence, then SiLU:
///   c[t, i] = bias[i] + sum_k weight[i, 0, k] v[t - K + 1 + k, i],     y = c sigmoid(c)
/// where v is x inside the sequence that holds t. To the left of the sequence v is the initial state, or zero
/// when there is no initial state.
/// Backward, with du = dy silu'(c) and sums over tokens of one sequence:
///   dx[t] = sum_k weight[k] du[t + K - 1 - k]
///   dweight[k] = sum_t du[t] v[t - K + 1 + k],     dbias = sum_t du[t]
///
/// shapes     x, y [T, C]; weight [C, 1, K], K >= 1; bias [C] or undefined; T and C may be 0
/// layout     x may be a view of wider rows
/// devices    CPU, CUDA; four taps are fastest there
/// dtypes     x and y alike: f32, f64 (CPU) or bf16; weight, bias: the dtype of x or its accumulation dtype
/// arithmetic f32 (f64 for f64); y is rounded once
/// states     [sequences, K - 1, C] in f32 (f64 for f64): the last K - 1 inputs, oldest first, zeros where
///            the sequence and its initial state have fewer. `final_state` is set to a new tensor; the
///            pointer may point to the variable that holds the initial state. States are constants: no
///            gradient goes into the initial state or comes from the final one
/// keeps      x and the parameters; backward computes c again
/// errors     Error on shapes, dtypes and offsets that do not fit
/// source     Mamba-2 mixer, state-spaces/mamba; packing as in Dao-AILab/causal-conv1d with sequence ids
Var causal_conv1d_silu(Context& ctx, const Var& x, const Var& weight, const Var& bias,
                       const Sequences& sequences, const Tensor* initial_state = nullptr,
                       Tensor* final_state = nullptr);

}  // namespace nemocube
