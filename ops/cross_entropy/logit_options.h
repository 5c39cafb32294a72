#pragma once
#include "core/autograd.h"

namespace nemocube {

/// What a head makes of its products z before their softmax. Without options nothing is computed.
///     z' = c tanh((z + b) / c)        b: bias, c: soft_cap
struct LogitOptions {
  /// [V], or the rank's tokens where the vocabulary is cut; dtype of z, f32 for z of f32 that comes of bf16
  /// operands; undefined: none.
  Var bias;
  double soft_cap = 0;  ///< 0: none
};

/// Error with `op` before its text unless `options` suit logits of `tokens` columns and the dtype of the
/// operands.
void check_logit_options(const char* op, const LogitOptions& options, std::int64_t tokens, DType dtype);

/// logits = z', where no loss is wanted: in generation and evaluation.
///
/// shapes     logits [..., V], or the rank's tokens; rows may be strided
/// dtypes     f32, f64 (CPU) or bf16; bf16 is computed in f32 and rounded once. bias of any floating dtype
/// devices    CPU, CUDA
/// errors     Error when the bias has another shape or soft_cap is negative or not finite
/// source     final_logit_softcapping of Gemma, lm_head.bias of Phi (Hugging Face Transformers)
void shape_logits(const Tensor& logits, const LogitOptions& options);

}  // namespace nemocube
