#include <vector>

#include "ops/optimizer_step.cuh"
#include "ops/sgd/sgd_kernels.h"

namespace nemocube::cuda {
namespace {

struct SgdRow : StepRow {
  float* buffer;  // null where momentum is 0
  bool operator==(const SgdRow&) const = default;
};

/// Numbers of all parameters: buffer = keep buffer + g; d = from_grad g + from_buffer buffer.
struct SgdStep {
  using Row = SgdRow;
  struct Factors {
    float rate, scale, l2;
    bool first;
  };
  float keep, from_grad, from_buffer;

  __device__ Factors factors(const Row& row, const double* schedule, double grad_scale) const {
    return {static_cast<float>(schedule[0] * row.lr_factor), static_cast<float>(grad_scale),
            static_cast<float>(schedule[1] * row.decay_factor), schedule[2] != 0};
  }

  template <bool aligned>
  __device__ void update(const Row& row, const Factors& o, std::int64_t at) const {
    const std::int64_t count = row.numel - at;
    float w[step_pack], d[step_pack];
    StepPack::load<aligned>(row.master + at, count).read(w);
    StepPack::load<aligned>(row.grad + at, count).read(d);
#pragma unroll
    for (int i = 0; i < step_pack; ++i) d[i] = d[i] * o.scale + o.l2 * w[i];
    if (row.buffer) {
      float sum[step_pack] = {};
      if (!o.first) StepPack::load<aligned>(row.buffer + at, count).read(sum);
#pragma unroll
      for (int i = 0; i < step_pack; ++i) {
        sum[i] = o.first ? d[i] : keep * sum[i] + d[i];
        d[i] = from_grad * d[i] + from_buffer * sum[i];
      }
      StepPack::of(sum).template store<aligned>(row.buffer + at, count);
    }
#pragma unroll
    for (int i = 0; i < step_pack; ++i) w[i] -= o.rate * d[i];  // not finite wherever the buffer is not
    store_weights<aligned>(row, w, at);
    note_finite(row, at, w);
  }
};

__global__ void __launch_bounds__(step_threads)
    sgd_kernel(const SgdRow* rows, int count, const double* schedule, const double* grad_scale,
               const double* go, const SgdStep step) {
  step_of_block(rows, count, schedule, grad_scale, go, step);
}

void step(std::span<const SgdRange> parameters, const SgdOptions& o, const Tensor& schedule,
          const UpdateGate& gate) {
  std::vector<SgdRow> rows;
  for (const SgdRange& p : parameters) {
    const Tensor buffer = o.momentum != 0 ? p.momentum_buffer : Tensor();
    rows.push_back({step_row("sgd", p, gate, buffer), buffer.defined() ? data_of<float>(buffer) : nullptr});
  }
  launch_step("sgd step", sgd_kernel, std::move(rows), schedule, gate,
              SgdStep{.keep = static_cast<float>(o.momentum),
                      .from_grad = o.nesterov ? 1.0f : 0.0f,
                      .from_buffer = o.nesterov ? static_cast<float>(o.momentum) : 1.0f});
}

const Provide provided(sgd_step_kernel, step);

}  // namespace
}  // namespace nemocube::cuda
