#pragma once
#include "ops/update_gate.h"

namespace nemocube {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;  ///< added to the gradient (L2)
  bool first = false;       ///< the first step: the buffer becomes the gradient, whatever it held
  bool nesterov = false;
};

/// One step of gradient descent with momentum, without dampening, unless the gate is closed:
///
///   g <- grad_scale grad + weight_decay w
///   buffer <- g when first, else momentum buffer + g
///   w <- w - lr d      d = buffer; nesterov: g + momentum buffer; momentum 0: g
///   model_copy <- w, rounded to nearest even
///
/// shapes     master (w), momentum_buffer, grad and model_copy alike, any shape
/// dtypes     all f32, or all f64; model_copy bf16, or undefined when the master is the parameter.
///            momentum_buffer may be undefined, and is not touched, when momentum is 0.
/// layout     contiguous; no two may overlap
/// errors     Error for other shapes, dtypes or layouts, a momentum outside [0, 1), or nesterov without it
/// repeat     same bits for any number of threads
/// gate       see UpdateGate; what counts as written: master, model_copy (a master beyond the largest bf16 number
///            rounds to infinity) and momentum_buffer
void sgd_step(const Tensor& master, const Tensor& momentum_buffer, const Tensor& grad,
              const Tensor& model_copy, const SgdOptions& options, const UpdateGate& gate);

}  // namespace nemocube
