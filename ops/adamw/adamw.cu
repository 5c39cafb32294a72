#include <vector>

#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/adamw/adamw_kernels.h"
#include "ops/range_table.cuh"

namespace nemocube::cuda {
namespace {

constexpr int threads = 256, pack = whole_pack<float>;
constexpr std::int64_t of_block = std::int64_t{threads} * pack;  // elements

/// A row of the table that the kernel reads: one parameter.
struct Range {
  float *master, *exp_avg, *exp_avg_sq;
  const float* grad;
  __nv_bfloat16* model_copy;  // null: none
  double* finite;
  double lr_factor, decay_factor;
  std::int64_t numel, first_block;
  bool aligned;
  bool operator==(const Range&) const = default;
};

/// Numbers of all ranges, for the kernel.
struct Fixed {
  float beta1, rest1, beta2, rest2, eps;
  bool decoupled;
};

/// Those of one range.
struct Factors {
  float keep, l2, rate, root, scale;
};

// As AdamWFactors; products are not contracted into the sums.
__device__ Factors factors_of(const Range& range, bool decoupled, const double* schedule, double grad_scale) {
  const double lr = schedule[0] * range.lr_factor, decay = schedule[1] * range.decay_factor;
  return {static_cast<float>(decoupled ? 1 - __dmul_rn(lr, decay) : 1),
          static_cast<float>(decoupled ? 0 : decay), static_cast<float>(lr / schedule[2]),
          static_cast<float>(1 / sqrt(schedule[3])), static_cast<float>(grad_scale)};
}

// Each thread has `pack` neighbours.
template <bool aligned>
__device__ void step_pack(const Range& t, const Fixed& f, const Factors& o, std::int64_t at) {
  const std::int64_t count = t.numel - at;
  float w[pack], m[pack], v[pack], g[pack];
  Pack<float, pack>::load<aligned>(t.master + at, count).read(w);
  Pack<float, pack>::load<aligned>(t.exp_avg + at, count).read(m);
  Pack<float, pack>::load<aligned>(t.exp_avg_sq + at, count).read(v);
  Pack<float, pack>::load<aligned>(t.grad + at, count).read(g);
  const bool with_l2 = o.l2 != 0;
#pragma unroll
  for (int i = 0; i < pack; ++i) {
    g[i] *= o.scale;
    if (with_l2) g[i] += o.l2 * w[i];
    m[i] = f.beta1 * m[i] + f.rest1 * g[i];
    v[i] = f.beta2 * v[i] + f.rest2 * g[i] * g[i];
    w[i] = w[i] * o.keep - o.rate * (m[i] / (sqrtf(v[i]) * o.root + f.eps));
  }
  Pack<float, pack>::of(w).template store<aligned>(t.master + at, count);
  Pack<float, pack>::of(m).template store<aligned>(t.exp_avg + at, count);
  Pack<float, pack>::of(v).template store<aligned>(t.exp_avg_sq + at, count);
  if (t.model_copy) {
    const auto copy = Pack<__nv_bfloat16, pack>::of(w);
    copy.template store<aligned>(t.model_copy + at, count);
    copy.read(w);  // not finite wherever the master is not
  }
  bool finite = true;
#pragma unroll
  for (int i = 0; i < pack; ++i)
    if (i < count) finite = finite && isfinite(w[i]) && isfinite(m[i]) && isfinite(v[i]);
  // An atomic, because threads of all blocks may write.
  if (!finite) atomicExch(reinterpret_cast<unsigned long long*>(t.finite), 0ULL);
}

__global__ void __launch_bounds__(threads)
    adamw_kernel(const Range* ranges, int count, const double* schedule, const double* grad_scale,
                 const double* go, const Fixed fixed) {
  __shared__ Range range;
  __shared__ Factors factors;
  if (*go == 0) return;
  if (threadIdx.x == 0) {
    range = row_of_block(ranges, count);
    factors = factors_of(range, fixed.decoupled, schedule, *grad_scale);
  }
  __syncthreads();
  const std::int64_t at = (blockIdx.x - range.first_block) * of_block + threadIdx.x * pack;
  if (at >= range.numel) return;
  if (range.aligned)
    step_pack<true>(range, fixed, factors, at);
  else
    step_pack<false>(range, fixed, factors, at);
}

std::vector<Range> rows_of_table(std::span<const AdamWRange> parameters, const Tensor& finite) {
  std::vector<Range> table;
  std::int64_t blocks = 0;
  for (const AdamWRange& p : parameters) {
    require(p.master.dtype() == DType::f32, "adamw on cuda: want f32, got ", p.master.dtype());
    const Tensor copy = p.model_copy.defined() ? p.model_copy.reshape({-1}) : p.model_copy;
    table.push_back({.master = data_of<float>(p.master),
                     .exp_avg = data_of<float>(p.exp_avg),
                     .exp_avg_sq = data_of<float>(p.exp_avg_sq),
                     .grad = data_of<float>(p.grad),
                     .model_copy = copy.defined() ? data_of<__nv_bfloat16>(copy) : nullptr,
                     .finite = data_of<double>(finite) + p.number,
                     .lr_factor = p.lr_factor,
                     .decay_factor = p.decay_factor,
                     .numel = p.master.numel(),
                     .first_block = blocks,
                     .aligned = rows_aligned(p.master.reshape({-1}), p.exp_avg.reshape({-1}),
                                             p.exp_avg_sq.reshape({-1}), p.grad.reshape({-1}), copy)});
    blocks += blocks_for(p.master.numel(), of_block);
  }
  return table;
}

void step(std::span<const AdamWRange> parameters, const AdamWOptions& o, const Tensor& schedule,
          const UpdateGate& gate) {
  std::vector<Range> rows = rows_of_table(parameters, gate.finite);
  const int count = static_cast<int>(rows.size());
  const std::int64_t blocks = rows.back().first_block + blocks_for(rows.back().numel, of_block);
  static RangeTable<Range> table("optimizer state");
  const Fixed fixed{static_cast<float>(o.beta1), static_cast<float>(1 - o.beta1),
                    static_cast<float>(o.beta2), static_cast<float>(1 - o.beta2),
                    static_cast<float>(o.eps),   o.decoupled};
  launch("adamw step", adamw_kernel, blocks_for(blocks, 1), threads, table.on_device(std::move(rows)), count,
         static_cast<const double*>(data_of<double>(schedule)),
         static_cast<const double*>(data_of<double>(gate.grad_scale)),
         static_cast<const double*>(data_of<double>(gate.go)), fixed);
}

const Provide provided(adamw_step_kernel, step);

}  // namespace
}  // namespace nemocube::cuda
