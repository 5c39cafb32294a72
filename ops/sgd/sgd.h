#pragma once
#include <span>

#include "ops/update_gate.h"

namespace nemocube {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double weight_decay = 0;  ///< added to the gradient (L2)
  bool first = false;       ///< the first step: the buffer becomes the gradient, whatever it held
  bool nesterov = false;
};

/// One parameter of a step.
struct SgdRange {
  Tensor master, momentum_buffer, grad;
  Tensor model_copy;                       ///< may be undefined
  double lr_factor = 1, decay_factor = 1;  ///< on lr and weight_decay of the step
  std::int64_t number = 0;                 ///< its element of UpdateGate::finite
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(master), fn(momentum_buffer), fn(grad), fn(model_copy);
  }
};

/// The numbers that change from step to step, [3] f64 in host memory: lr, weight_decay, first (0 or 1). A
/// step reads them on its device, so that the same work can be queued again with other values.
Tensor sgd_schedule(const SgdOptions& options);

/// One step of gradient descent with momentum, without dampening, of all ranges by one call of a kernel,
/// unless the gate is closed. `schedule` has lr, weight_decay and first, of which the range's factors
/// multiply lr and weight_decay; `options` has the other numbers:
///
///   g <- grad_scale grad + weight_decay w
///   buffer <- g when first, else momentum buffer + g
///   w <- w - lr d      d = buffer; nesterov: g + momentum buffer; momentum 0: g
///   model_copy <- w, rounded to nearest even
///
/// shapes     master (w), momentum_buffer, grad and model_copy alike, any shape
/// devices    CPU, CUDA; all tensors, schedule and gate included, on the same one
/// dtypes     all f32, or all f64 (CPU); model_copy bf16, or undefined when the master is the parameter.
///            momentum_buffer may be undefined, and is not touched, when momentum is 0.
/// layout     contiguous; no two may overlap
/// errors     Error for other shapes, dtypes or layouts, a momentum outside [0, 1), or nesterov without it
/// repeat     same bits for any number of threads
/// gate       see UpdateGate; written tensors: master, model_copy (a master beyond the largest bf16
///            number rounds to infinity) and momentum_buffer
void sgd_step(std::span<const SgdRange> ranges, const SgdOptions& options, const Tensor& schedule,
              const UpdateGate& gate);

}  // namespace nemocube
