#pragma once
#include <span>

#include "ops/update_gate.h"

/// Adam: Kingma, Ba, "Adam: a method for stochastic optimization", 2015; decoupled weight decay: Loshchilov,
/// Hutter, "Decoupled weight decay regularization", 2019.
namespace nemocube {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  ///< false: Adam with the decay added to the gradient (L2)
  std::int64_t step = 1;  ///< t, counted from 1; the same for all parameters
};

/// One parameter of a step.
struct AdamWRange {
  Tensor master, exp_avg, exp_avg_sq, grad;
  Tensor model_copy;                       ///< may be undefined
  double lr_factor = 1, decay_factor = 1;  ///< on lr and weight_decay of the step
  std::int64_t number = 0;                 ///< its element of UpdateGate::finite
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(master), fn(exp_avg), fn(exp_avg_sq), fn(grad), fn(model_copy);
  }
};

/// The numbers of one step, [4] f64 in host memory: lr, weight_decay, 1 - beta1^t, 1 - beta2^t. A step reads
/// them on its device, so that the same work can be queued again with other values. Error for step < 1.
Tensor adamw_schedule(const AdamWOptions& options);

/// One step of all ranges in one pass over memory and by one call of a kernel, with g = grad_scale grad,
/// unless the gate is closed. `schedule` has lr, weight_decay and t, of which the range's factors multiply
/// the first two; `options` has the other numbers:
///
///   decoupled   w <- w (1 - lr weight_decay)          otherwise   g <- g + weight_decay w
///   m <- beta1 m + (1 - beta1) g
///   v <- beta2 v + (1 - beta2) g^2
///   w <- w - lr (m / (1 - beta1^t)) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
///   model_copy <- w, rounded to nearest even
///
/// shapes     master (w), exp_avg (m), exp_avg_sq (v), grad and model_copy alike, any shape
/// devices    CPU, CUDA; all tensors, schedule and gate included, on the same one
/// dtypes     all f32, or all f64 (CPU); model_copy bf16, or undefined when the master is the parameter
/// layout     contiguous; no two may overlap
/// arithmetic in the dtype of the master; the factors that depend on t alone in f64
/// errors     Error for other shapes, dtypes or layouts, or a beta outside [0, 1)
/// repeat     same bits for any number of threads
/// gate       see UpdateGate; written tensors: master, model_copy (a master beyond the largest bf16
///            number rounds to infinity) and both moments
void adamw_step(std::span<const AdamWRange> ranges, const AdamWOptions& options, const Tensor& schedule,
                const UpdateGate& gate);

}  // namespace nemocube
