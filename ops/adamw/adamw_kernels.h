#pragma once
#include <cmath>

#include "core/kernel.h"
#include "ops/adamw/adamw.h"

/// Kernels behind ops/adamw/adamw.h: arguments checked by the caller.
namespace nemocube {

/// Numbers of one range, formed in f64 and rounded to the type of the master. `schedule` is that of
/// adamw_schedule().
template <class T>
struct AdamWFactors {
  T beta1, rest1, beta2, rest2, eps, keep, l2, rate, root;
  AdamWFactors(const AdamWOptions& o, const double* schedule, const AdamWRange& range) {
    const double lr = schedule[0] * range.lr_factor, decay = schedule[1] * range.decay_factor;
    beta1 = static_cast<T>(o.beta1);
    rest1 = static_cast<T>(1 - o.beta1);
    beta2 = static_cast<T>(o.beta2);
    rest2 = static_cast<T>(1 - o.beta2);
    eps = static_cast<T>(o.eps);
    keep = static_cast<T>(o.decoupled ? 1 - lr * decay : 1);
    l2 = static_cast<T>(o.decoupled ? 0 : decay);
    rate = static_cast<T>(lr / schedule[2]);
    root = static_cast<T>(1 / std::sqrt(schedule[3]));
  }
};

namespace cpu {
void adamw_step(std::span<const AdamWRange> ranges, const AdamWOptions& options, const Tensor& schedule,
                const UpdateGate& gate);
}
inline const Kernel<cpu::adamw_step> adamw_step_kernel("adamw/step");

}  // namespace nemocube
