#include "ops/adamw/adamw.h"

#include <cmath>
#include <vector>

#include "core/profile.h"
#include "ops/adamw/adamw_kernels.h"

namespace nemocube {
namespace {

void check(const char* what, const Tensor& t, const Tensor& master, DType dtype) {
  check_dtype(what, t, dtype);
  check_shape(what, t, master.shape());
  require(t.contiguous(), what, ": want a contiguous tensor");
}

void check(const AdamWRange& r) {
  const Tensor& master = r.master;
  require(master.defined() && (master.dtype() == DType::f32 || master.dtype() == DType::f64),
          "adamw: master: want f32 or f64, got ", master.dtype());
  check("adamw: master", master, master, master.dtype());
  check("adamw: exp_avg", r.exp_avg, master, master.dtype());
  check("adamw: exp_avg_sq", r.exp_avg_sq, master, master.dtype());
  check("adamw: grad", r.grad, master, master.dtype());
  if (r.model_copy.defined()) check("adamw: model_copy", r.model_copy, master, DType::bf16);
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
  std::vector<AdamWRange> filled;
  for (const AdamWRange& range : ranges) {
    check(range);
    check_gate(gate, range.number);
    if (range.master.numel() > 0) filled.push_back(range);
  }
  if (filled.empty()) return;

  static Zone zone("adamw/step");
  const ZoneTimer timer(zone);
  adamw_step_kernel(filled, options, schedule, gate);
}

}  // namespace nemocube
