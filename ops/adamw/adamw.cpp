#include "ops/adamw/adamw.h"

#include <cmath>

#include "core/profile.h"
#include "ops/adamw/adamw_kernels.h"
#include "ops/optimizer_step.h"

namespace nemocube {
namespace {

void check(const AdamWRange& r) {
  const Tensor& master = r.master;
  check_master("adamw: master", master);
  check_like_master("adamw: exp_avg", r.exp_avg, master, master.dtype());
  check_like_master("adamw: exp_avg_sq", r.exp_avg_sq, master, master.dtype());
  check_like_master("adamw: grad", r.grad, master, master.dtype());
  if (r.model_copy.defined()) check_like_master("adamw: model_copy", r.model_copy, master, DType::bf16);
}

}  // namespace

Tensor adamw_schedule(const AdamWOptions& o) {
  require(o.step >= 1, "adamw: steps are counted from 1, got ", o.step);
  const auto t = static_cast<double>(o.step);
  return Tensor::from<double>({o.lr, o.weight_decay, 1 - std::pow(o.beta1, t), 1 - std::pow(o.beta2, t)},
                              {4});
}

void adamw_step(std::span<const AdamWRange> ranges, const AdamWOptions& options, const Tensor& schedule,
                const UpdateGate& gate) {
  for (const double beta : {options.beta1, options.beta2})
    require(beta >= 0 && beta < 1, "adamw: want betas in [0, 1), got ", beta);
  check_dtype("adamw: schedule", schedule, DType::f64);
  check_shape("adamw: schedule", schedule, {4});
  const auto filled = filled_ranges(ranges, gate, [](const AdamWRange& r) { check(r); });
  if (filled.empty()) return;

  static Zone zone("adamw/step");
  const ZoneTimer timer(zone);
  adamw_step_kernel(filled, options, schedule, gate);
}

}  // namespace nemocube
