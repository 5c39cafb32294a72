#include <vector>

#include "ops/adamw/adamw_kernels.h"
#include "ops/optimizer_step.cuh"

namespace nemocube::cuda {
namespace {

struct AdamWRow : StepRow {
  float *exp_avg, *exp_avg_sq;
  bool operator==(const AdamWRow&) const = default;
};

/// Numbers of all parameters.
struct AdamWStep {
  using Row = AdamWRow;
  struct Factors {
    float keep, l2, rate, root, scale;
  };
  float beta1, rest1, beta2, rest2, eps;
  bool decoupled;

  // As AdamWFactors; products are not contracted into the sums.
  __device__ Factors factors(const Row& row, const double* schedule, double grad_scale) const {
    const double lr = schedule[0] * row.lr_factor, decay = schedule[1] * row.decay_factor;
    return {static_cast<float>(decoupled ? 1 - __dmul_rn(lr, decay) : 1),
            static_cast<float>(decoupled ? 0 : decay), static_cast<float>(lr / schedule[2]),
            static_cast<float>(1 / sqrt(schedule[3])), static_cast<float>(grad_scale)};
  }

  template <bool aligned>
  __device__ void update(const Row& row, const Factors& o, std::int64_t at) const {
    const std::int64_t count = row.numel - at;
    float w[step_pack], m[step_pack], v[step_pack], g[step_pack];
    StepPack::load<aligned>(row.master + at, count).read(w);
    StepPack::load<aligned>(row.exp_avg + at, count).read(m);
    StepPack::load<aligned>(row.exp_avg_sq + at, count).read(v);
    StepPack::load<aligned>(row.grad + at, count).read(g);
    const bool with_l2 = o.l2 != 0;
#pragma unroll
    for (int i = 0; i < step_pack; ++i) {
      g[i] *= o.scale;
      if (with_l2) g[i] += o.l2 * w[i];
      m[i] = beta1 * m[i] + rest1 * g[i];
      v[i] = beta2 * v[i] + rest2 * g[i] * g[i];
      w[i] = w[i] * o.keep - o.rate * (m[i] / (sqrtf(v[i]) * o.root + eps));
    }
    StepPack::of(m).template store<aligned>(row.exp_avg + at, count);
    StepPack::of(v).template store<aligned>(row.exp_avg_sq + at, count);
    store_weights<aligned>(row, w, at);
    note_finite(row, at, w, m, v);
  }
};

__global__ void __launch_bounds__(step_threads)
    adamw_kernel(const AdamWRow* rows, int count, const double* schedule, const double* grad_scale,
                 const double* go, const AdamWStep step) {
  step_of_block(rows, count, schedule, grad_scale, go, step);
}

void step(std::span<const AdamWRange> parameters, const AdamWOptions& o, const Tensor& schedule,
          const UpdateGate& gate) {
  std::vector<AdamWRow> rows;
  for (const AdamWRange& p : parameters)
    rows.push_back({step_row("adamw", p, gate, p.exp_avg, p.exp_avg_sq), data_of<float>(p.exp_avg),
                    data_of<float>(p.exp_avg_sq)});
  launch_step(
      "adamw step", adamw_kernel, std::move(rows), schedule, gate,
      AdamWStep{static_cast<float>(o.beta1), static_cast<float>(1 - o.beta1), static_cast<float>(o.beta2),
                static_cast<float>(1 - o.beta2), static_cast<float>(o.eps), o.decoupled});
}

const Provide provided(adamw_step_kernel, step);

}  // namespace
}  // namespace nemocube::cuda
