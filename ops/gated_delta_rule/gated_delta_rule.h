#pragma once
#include <cstdint>

#include "core/autograd.h"
#include "ops/sequences.h"

namespace nemocube {

struct DeltaRuleOptions {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  /// Longest chunk; at most 64 are used. The length changes speed, and the memory for backward (one state
  /// for each chunk). Results stay equal up to rounding.
  std::int64_t chunk_size = 64;
};

struct DeltaRuleInputs {
  Var q, k;   ///< [T, key_heads * key_dim]
  Var v;      ///< [T, value_heads * value_dim]
  Var a, b;   ///< [T, value_heads]
  Var A_log;  ///< [value_heads], as dt_bias
  Var dt_bias;
};

/// Gated delta rule along each sequence. Value head h reads key head h / (value_heads / key_heads):
///   q <- key_dim^(-1/2) q / sqrt(sum q^2 + 1e-6),  k <- k / sqrt(sum k^2 + 1e-6)      for each head
///   beta_t = sigmoid(b_t),   g_t = -exp(A_log) softplus(a_t + dt_bias)
///   e_t = beta_t (v_t - (e^(g_t) S_{t-1})^T k_t),   S_t = e^(g_t) S_{t-1} + k_t e_t^T,   o_t = S_t^T q_t
/// with S [key_dim, value_dim] for each value head. At the start of a sequence S is the initial state, or
/// zero when there is no initial state. Backward forms the gradients of all seven inputs.
///
/// shapes     as above; o like v; value_heads a multiple of key_heads; T and single sequences may be empty
/// layout     q, k, v, a and b may be views of wider rows
/// dtypes     q, k, v, a, b and o alike: f32, f64 (CPU) or bf16; A_log, dt_bias: that or its accumulation
///            dtype
/// arithmetic f32 (f64 for f64), the triangular systems of chunks too; sums of g within a chunk in f64 or two
///            f32; o is rounded once. Decays that underflow are 0. softplus(x) = x above 20. A row of zeros
///            is its own normalised row. On CUDA devices bf16 with keys and values of 128 runs on tensor
///            cores: operands that are themselves results (states, e_t, products between tokens) are then
///            rounded to bf16, elements of inverse matrices are sums of two bf16, all sums are f32
/// states     [sequences, value_heads, key_dim, value_dim] in f32 (f64 for f64). `final_state` is set to a
///            new tensor; the pointer may point to the variable that holds the initial state. States are
///            constants: no gradient goes into the initial state or comes from the final one
/// keeps      the inputs and the states at the starts of chunks; backward computes the rest again, solutions
///            of the triangular systems included
/// variants   chunked: matrix products within chunks, a triangular system for each chunk, and a recurrence
///            over chunks. recurrent: the formula above, token by token; not on CUDA devices
/// repeat     bits depend on a sequence alone, not on its neighbours or the number of threads; gradients of
///            the parameters are summed over chunks in their order
/// errors     Error on shapes, dtypes, offsets and options that do not fit
/// source     Yang, Kautz, Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024;
///            huggingface/transformers: torch_chunk_gated_delta_rule
Var gated_delta_rule(Context& ctx, const DeltaRuleInputs& in, const DeltaRuleOptions& options,
                     const Sequences& sequences, const Tensor* initial_state = nullptr,
                     Tensor* final_state = nullptr);

}  // namespace nemocube
