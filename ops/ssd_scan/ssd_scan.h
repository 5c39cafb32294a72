#pragma once
#include <cstdint>
#include <limits>

#include "core/autograd.h"
#include "ops/sequences.h"

namespace nemocube {

struct SsdOptions {
  std::int64_t heads = 0, head_dim = 0, groups = 0, state_size = 0;
  /// Longest chunk. CPU kernels use at most 64, kernels on tensor cores always 128.
  /// The length changes speed, and the memory for backward (one state for each
  /// chunk). Results stay equal up to rounding.
  std::int64_t chunk_size = 128;
  double dt_min = 0, dt_max = std::numeric_limits<double>::infinity();  ///< limits of dt after softplus
};

struct SsdInputs {
  Var x;       ///< [T, heads * head_dim]
  Var dt_raw;  ///< [T, heads]
  Var B, C;    ///< [T, groups * state_size]
  Var A_log;   ///< [heads], as D and dt_bias
  Var D;
  Var dt_bias;
};

/// State-space scan of Mamba-2 along each sequence. Head h reads group h / (heads / groups) of B and C:
///   dt = clip(softplus(dt_raw + dt_bias), dt_min, dt_max),   A = -exp(A_log)
///   S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T,              y_t = S_t C_t + D x_t
/// with S [head_dim, state_size] for each head. At the start of a sequence S is the initial state, or zero
/// when there is no initial state. Backward forms the gradients of all seven inputs.
///
/// shapes     as above; y like x; heads a multiple of groups; T and single sequences may be empty
/// layout     x, dt_raw, B and C may be views of wider rows
/// dtypes     x, dt_raw, B, C and y alike: f32, f64 or bf16; A_log, D, dt_bias: that or its accumulation
///            dtype
/// arithmetic f32 (f64 for f64), sums of dt A within a chunk in f64 or two f32; y is rounded once. Decays
///            that underflow are 0. softplus(v) = v above 20. On CUDA
///            devices bf16 with heads of 64 or 80 and states of 128 runs on
///            tensor cores: operands that are themselves results (products
///            of tokens with their decays, weighted inputs, states in
///            products) are then rounded to bf16, all sums are f32
/// states     [sequences, heads, head_dim, state_size] in f32 (f64 for f64). `final_state` is set to a new
///            tensor; the pointer may point to the variable that holds the initial state. States are
///            constants: no gradient goes into the initial state or comes from the final one
/// keeps      the inputs and the states at the starts of chunks; backward computes the rest again
/// variants   chunked: matrix products within chunks and a recurrence over chunks. recurrent: the formula
///            above, token by token; not on CUDA devices
/// repeat     bits depend on a sequence alone, not on its neighbours or the number of threads; gradients of
///            the parameters are summed over chunks in their order
/// errors     Error on shapes, dtypes, offsets and options that do not fit
/// source     Dao, Gu, "Transformers are SSMs", 2024, section 6; state-spaces/mamba: ssd_combined
Var ssd_scan(Context& ctx, const SsdInputs& in, const SsdOptions& options, const Sequences& sequences,
             const Tensor* initial_state = nullptr, Tensor* final_state = nullptr);

}  // namespace nemocube
