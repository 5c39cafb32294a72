#include "ops/sgd/sgd.h"

#include <vector>

#include "core/profile.h"
#include "ops/sgd/sgd_kernels.h"

namespace nemocube {
namespace {

void check(const char* what, const Tensor& t, const Tensor& master, DType dtype) {
  check_dtype(what, t, dtype);
  check_shape(what, t, master.shape());
  require(t.contiguous(), what, ": want a contiguous tensor");
}

void check(const SgdRange& r, bool with_buffer) {
  const Tensor& master = r.master;
  require(master.defined() && (master.dtype() == DType::f32 || master.dtype() == DType::f64),
          "sgd: master: want f32 or f64, got ", master.dtype());
  check("sgd: master", master, master, master.dtype());
  check("sgd: grad", r.grad, master, master.dtype());
  if (with_buffer) check("sgd: momentum_buffer", r.momentum_buffer, master, master.dtype());
  if (r.model_copy.defined()) check("sgd: model_copy", r.model_copy, master, DType::bf16);
}

}  // namespace

Tensor sgd_schedule(const SgdOptions& o) {
  return Tensor::from<double>({o.lr, o.weight_decay, o.first ? 1.0 : 0.0}, {3});
}

void sgd_step(std::span<const SgdRange> ranges, const SgdOptions& options, const Tensor& schedule,
              const UpdateGate& gate) {
  require(options.momentum >= 0 && options.momentum < 1, "sgd: want a momentum in [0, 1), got ",
          options.momentum);
  require(!options.nesterov || options.momentum > 0, "sgd: nesterov wants a momentum");
  check_dtype("sgd: schedule", schedule, DType::f64);
  check_shape("sgd: schedule", schedule, {3});
  std::vector<SgdRange> filled;
  for (const SgdRange& range : ranges) {
    check(range, options.momentum != 0);
    check_gate(gate, range.number);
    if (range.master.numel() > 0) filled.push_back(range);
  }
  if (filled.empty()) return;

  static Zone zone("sgd/step");
  const ZoneTimer timer(zone);
  sgd_step_kernel(filled, options, schedule, gate);
}

}  // namespace nemocube
