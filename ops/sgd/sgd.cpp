#include "ops/sgd/sgd.h"

#include "core/profile.h"
#include "ops/optimizer_step.h"
#include "ops/sgd/sgd_kernels.h"

namespace nemocube {
namespace {

void check(const SgdRange& r, bool with_buffer) {
  const Tensor& master = r.master;
  check_master("sgd: master", master);
  check_like_master("sgd: grad", r.grad, master, master.dtype());
  if (with_buffer) check_like_master("sgd: momentum_buffer", r.momentum_buffer, master, master.dtype());
  if (r.model_copy.defined()) check_like_master("sgd: model_copy", r.model_copy, master, DType::bf16);
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
  const auto filled =
      filled_ranges(ranges, gate, [&](const SgdRange& r) { check(r, options.momentum != 0); });
  if (filled.empty()) return;

  static Zone zone("sgd/step");
  const ZoneTimer timer(zone);
  sgd_step_kernel(filled, options, schedule, gate);
}

}  // namespace nemocube
