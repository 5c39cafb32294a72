#include "ops/sgd/sgd.h"

#include "core/profile.h"
#include "ops/sgd/sgd_kernels.h"

namespace nemocube {
namespace {

void check(const char* what, const Tensor& t, const Tensor& master, DType dtype) {
  check_dtype(what, t, dtype);
  check_shape(what, t, master.shape());
  require(t.contiguous(), what, ": want a contiguous tensor");
}

}  // namespace

void sgd_step(const Tensor& master, const Tensor& momentum_buffer, const Tensor& grad,
              const Tensor& model_copy, const SgdOptions& options, const UpdateGate& gate) {
  require(master.defined() && (master.dtype() == DType::f32 || master.dtype() == DType::f64),
          "sgd: master: want f32 or f64, got ", master.dtype());
  check("sgd: master", master, master, master.dtype());
  check("sgd: grad", grad, master, master.dtype());
  if (options.momentum != 0) check("sgd: momentum_buffer", momentum_buffer, master, master.dtype());
  if (model_copy.defined()) check("sgd: model_copy", model_copy, master, DType::bf16);
  require(options.momentum >= 0 && options.momentum < 1, "sgd: want a momentum in [0, 1), got ",
          options.momentum);
  require(!options.nesterov || options.momentum > 0, "sgd: nesterov wants a momentum");
  check_gate(gate);
  if (master.numel() == 0) return;

  static Zone zone("sgd/step");
  const ZoneTimer timer(zone);
  sgd_step_kernel(master, momentum_buffer, grad, model_copy, options, gate);
}

}  // namespace nemocube
