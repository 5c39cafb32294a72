#pragma once
#include "core/autograd.h"

namespace nemocube {

/// Changes of a head's products z before the softmax, and a term of the loss. By default there is neither.
///     z' = c tanh((z + b) / c)                 b: bias, c: soft_cap
///     loss of each labelled row += w m^2       m = max_v z'[v], w: z_loss_weight
struct LogitOptions {
  /// [V], or the rank's tokens where the vocabulary is cut. The dtype is that of z: f32 where z is f32 from
  /// bf16 operands. Undefined: none.
  Var bias;
  double soft_cap = 0;       ///< 0: none
  double z_loss_weight = 0;  ///< 0: none
};

/// Error with `op` before its text unless `options` suit logits of `tokens` columns and the dtype of the
/// operands.
void check_logit_options(const char* op, const LogitOptions& options, std::int64_t tokens, DType dtype);

/// logits = z', where no loss is wanted: in generation and evaluation. z_loss_weight does not matter.
///
/// shapes     logits [..., V], or the rank's tokens; rows may be strided
/// dtypes     f32, f64 (CPU) or bf16; bf16 is computed in f32 and rounded once. bias of any floating dtype
/// devices    CPU, CUDA
/// errors     Error when the bias has another shape or a number is negative or not finite
/// source     final_logit_softcapping of Gemma, lm_head.bias of Phi (Hugging Face Transformers)
void shape_logits(const Tensor& logits, const LogitOptions& options);

}  // namespace nemocube
