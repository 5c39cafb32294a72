#include "ops/adamw/adamw.h"

#include "core/profile.h"
#include "ops/adamw/adamw_kernels.h"

namespace nemocube {
namespace {

void check(const char* what, const Tensor& t, const Tensor& master, DType dtype) {
  check_dtype(what, t, dtype);
  check_shape(what, t, master.shape());
  require(t.contiguous(), what, ": want a contiguous tensor");
}

}  // namespace

void adamw_step(const Tensor& master, const Tensor& exp_avg, const Tensor& exp_avg_sq, const Tensor& grad,
                const Tensor& model_copy, const AdamWOptions& options, const UpdateGate& gate) {
  require(master.defined() && (master.dtype() == DType::f32 || master.dtype() == DType::f64),
          "adamw: master: want f32 or f64, got ", master.dtype());
  check("adamw: master", master, master, master.dtype());
  check("adamw: exp_avg", exp_avg, master, master.dtype());
  check("adamw: exp_avg_sq", exp_avg_sq, master, master.dtype());
  check("adamw: grad", grad, master, master.dtype());
  if (model_copy.defined()) check("adamw: model_copy", model_copy, master, DType::bf16);
  require(options.step >= 1, "adamw: steps are counted from 1, got ", options.step);
  for (const double beta : {options.beta1, options.beta2})
    require(beta >= 0 && beta < 1, "adamw: want betas in [0, 1), got ", beta);
  check_gate(gate);
  if (master.numel() == 0) return;

  static Zone zone("adamw/step");
  const ZoneTimer timer(zone);
  adamw_step_kernel(master, exp_avg, exp_avg_sq, grad, model_copy, options, gate);
}

}  // namespace nemocube
