#pragma once
#include <cmath>

#include "core/kernel.h"
#include "ops/adamw/adamw.h"

/// Kernels behind ops/adamw/adamw.h: arguments checked by the caller.
namespace nemocube {

/// Numbers that follow from the options alone, formed in f64 and rounded to the type of the master.
template <class T>
struct AdamWFactors {
  T beta1, rest1, beta2, rest2, eps, keep, l2, rate, root;
  explicit AdamWFactors(const AdamWOptions& o) {
    const auto t = static_cast<double>(o.step);
    beta1 = static_cast<T>(o.beta1);
    rest1 = static_cast<T>(1 - o.beta1);
    beta2 = static_cast<T>(o.beta2);
    rest2 = static_cast<T>(1 - o.beta2);
    eps = static_cast<T>(o.eps);
    keep = static_cast<T>(o.decoupled ? 1 - o.lr * o.weight_decay : 1);
    l2 = static_cast<T>(o.decoupled ? 0 : o.weight_decay);
    rate = static_cast<T>(o.lr / (1 - std::pow(o.beta1, t)));
    root = static_cast<T>(1 / std::sqrt(1 - std::pow(o.beta2, t)));
  }
};

namespace cpu {
void adamw_step(const Tensor& master, const Tensor& exp_avg, const Tensor& exp_avg_sq, const Tensor& grad,
                const Tensor& model_copy, const AdamWOptions& options, const UpdateGate& gate);
}
inline const Kernel<cpu::adamw_step> adamw_step_kernel("adamw/step");

}  // namespace nemocube
