#include <vector>

#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/range_table.cuh"
#include "ops/sgd/sgd_kernels.h"

namespace nemocube::cuda {
namespace {

constexpr int threads = 256, pack = whole_pack<float>;
constexpr std::int64_t of_block = std::int64_t{threads} * pack;  // elements

/// A row of the table that the kernel reads: one parameter.
struct Range {
  float *master, *buffer;  // buffer is null where momentum is 0
  const float* grad;
  __nv_bfloat16* model_copy;  // null: none
  double* finite;
  double lr_factor, decay_factor;
  std::int64_t numel, first_block;
  bool aligned;
  bool operator==(const Range&) const = default;
};

/// Numbers of all ranges, for the kernel: buffer = keep buffer + g; d = from_grad g + from_buffer buffer.
struct Fixed {
  float keep, from_grad, from_buffer;
};

/// Those of one range.
struct Factors {
  float rate, scale, l2;
  bool first;
};

__device__ Factors factors_of(const Range& range, const double* schedule, double grad_scale) {
  return {static_cast<float>(schedule[0] * range.lr_factor), static_cast<float>(grad_scale),
          static_cast<float>(schedule[1] * range.decay_factor), schedule[2] != 0};
}

// Each thread has `pack` neighbours.
template <bool aligned>
__device__ void step_pack(const Range& t, const Fixed& f, const Factors& o, std::int64_t at) {
  const std::int64_t count = t.numel - at;
  using Elements = Pack<float, pack>;
  float w[pack], d[pack];
  Elements::load<aligned>(t.master + at, count).read(w);
  Elements::load<aligned>(t.grad + at, count).read(d);
#pragma unroll
  for (int i = 0; i < pack; ++i) d[i] = d[i] * o.scale + o.l2 * w[i];
  if (t.buffer) {
    float sum[pack] = {};
    if (!o.first) Elements::load<aligned>(t.buffer + at, count).read(sum);
#pragma unroll
    for (int i = 0; i < pack; ++i) {
      sum[i] = o.first ? d[i] : f.keep * sum[i] + d[i];
      d[i] = f.from_grad * d[i] + f.from_buffer * sum[i];
    }
    Elements::of(sum).template store<aligned>(t.buffer + at, count);
  }
#pragma unroll
  for (int i = 0; i < pack; ++i) w[i] -= o.rate * d[i];  // not finite wherever the buffer is not
  Elements::of(w).template store<aligned>(t.master + at, count);
  if (t.model_copy) {
    const auto copy = Pack<__nv_bfloat16, pack>::of(w);
    copy.template store<aligned>(t.model_copy + at, count);
    copy.read(w);  // not finite wherever the master is not
  }
  bool finite = true;
#pragma unroll
  for (int i = 0; i < pack; ++i)
    if (i < count) finite = finite && isfinite(w[i]);
  // An atomic, because threads of all blocks may write.
  if (!finite) atomicExch(reinterpret_cast<unsigned long long*>(t.finite), 0ULL);
}

__global__ void __launch_bounds__(threads)
    sgd_kernel(const Range* ranges, int count, const double* schedule, const double* grad_scale,
               const double* go, const Fixed fixed) {
  __shared__ Range range;
  __shared__ Factors factors;
  if (*go == 0) return;
  if (threadIdx.x == 0) {
    range = row_of_block(ranges, count);
    factors = factors_of(range, schedule, *grad_scale);
  }
  __syncthreads();
  const std::int64_t at = (blockIdx.x - range.first_block) * of_block + threadIdx.x * pack;
  if (at >= range.numel) return;
  if (range.aligned)
    step_pack<true>(range, fixed, factors, at);
  else
    step_pack<false>(range, fixed, factors, at);
}

Range row_of_table(const SgdRange& p, bool with_buffer, const Tensor& finite, std::int64_t first_block) {
  require(p.master.dtype() == DType::f32, "sgd on cuda: want f32, got ", p.master.dtype());
  const auto flat = [](const Tensor& t) { return t.defined() ? t.reshape({-1}) : t; };
  const Tensor buffer = with_buffer ? flat(p.momentum_buffer) : Tensor(), copy = flat(p.model_copy);
  return {.master = data_of<float>(p.master),
          .buffer = buffer.defined() ? data_of<float>(buffer) : nullptr,
          .grad = data_of<float>(p.grad),
          .model_copy = copy.defined() ? data_of<__nv_bfloat16>(copy) : nullptr,
          .finite = data_of<double>(finite) + p.number,
          .lr_factor = p.lr_factor,
          .decay_factor = p.decay_factor,
          .numel = p.master.numel(),
          .first_block = first_block,
          .aligned = rows_aligned(flat(p.master), buffer, flat(p.grad), copy)};
}

void step(std::span<const SgdRange> parameters, const SgdOptions& o, const Tensor& schedule,
          const UpdateGate& gate) {
  static RangeTable<Range> table("optimizer state");
  std::vector<Range> rows;
  std::int64_t blocks = 0;
  for (const SgdRange& p : parameters) {
    rows.push_back(row_of_table(p, o.momentum != 0, gate.finite, blocks));
    blocks += blocks_for(p.master.numel(), of_block);
  }
  const int count = static_cast<int>(rows.size());
  const Fixed fixed{.keep = static_cast<float>(o.momentum),
                    .from_grad = o.nesterov ? 1.0f : 0.0f,
                    .from_buffer = o.nesterov ? static_cast<float>(o.momentum) : 1.0f};
  launch("sgd step", sgd_kernel, blocks_for(blocks, 1), threads, table.on_device(std::move(rows)), count,
         static_cast<const double*>(data_of<double>(schedule)),
         static_cast<const double*>(data_of<double>(gate.grad_scale)),
         static_cast<const double*>(data_of<double>(gate.go)), fixed);
}

const Provide provided(sgd_step_kernel, step);

}  // namespace
}  // namespace nemocube::cuda
