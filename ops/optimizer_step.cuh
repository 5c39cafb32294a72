#pragma once
#include <span>
#include <utility>
#include <vector>

#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/range_table.cuh"
#include "ops/update_gate.h"

/// What the kernels of the steps of optimizers, ops/adamw and ops/sgd, share: one launch steps all
/// parameters, of which a table has a row each. The host's part: ops/optimizer_step.h.
namespace nemocube::cuda {

/// Each thread has `step_pack` neighbours.
constexpr int step_threads = 256, step_pack = whole_pack<float>;
constexpr std::int64_t step_block = std::int64_t{step_threads} * step_pack;  ///< elements
using StepPack = Pack<float, step_pack>;

/// A row of the table. An optimizer derives its own, with the tensors of its state.
struct StepRow {
  float* master;
  const float* grad;
  __nv_bfloat16* model_copy;  ///< null: none
  double* finite;
  double lr_factor, decay_factor;
  std::int64_t numel, first_block;
  bool aligned;
  bool operator==(const StepRow&) const = default;
};

/// Writes the weights of a thread and their copies in bf16. `w` becomes what is not finite wherever one of
/// the two is not.
template <bool aligned>
__device__ void store_weights(const StepRow& row, float (&w)[step_pack], std::int64_t at) {
  const std::int64_t count = row.numel - at;
  StepPack::of(w).template store<aligned>(row.master + at, count);
  if (!row.model_copy) return;
  const auto copy = Pack<__nv_bfloat16, step_pack>::of(w);
  copy.template store<aligned>(row.model_copy + at, count);
  copy.read(w);  // not finite wherever the master is not
}

/// Notes whether the values of a thread are finite, those beyond the end of the parameter apart.
template <class... Values>
__device__ void note_finite(const StepRow& row, std::int64_t at, const Values (&... values)[step_pack]) {
  bool finite = true;
#pragma unroll
  for (int i = 0; i < step_pack; ++i)
    if (at + i < row.numel) finite = finite && (isfinite(values[i]) && ...);
  // An atomic, because threads of all blocks may write.
  if (!finite) atomicExch(reinterpret_cast<unsigned long long*>(row.finite), 0ULL);
}

/// The body of a kernel of `step_threads`. A Step has types Row and Factors and members
///
///   factors(row, schedule, grad_scale)       numbers of one row, formed by one thread of each block
///   update<aligned>(row, factors, at)        the step of one thread, from element `at` on
template <class Step>
__device__ void step_of_block(const typename Step::Row* rows, int count, const double* schedule,
                              const double* grad_scale, const double* go, const Step& step) {
  __shared__ typename Step::Row row;
  __shared__ typename Step::Factors factors;
  if (*go == 0) return;
  if (threadIdx.x == 0) {
    row = row_of_block(rows, count);
    factors = step.factors(row, schedule, *grad_scale);
  }
  __syncthreads();
  const std::int64_t at = (blockIdx.x - row.first_block) * step_block + threadIdx.x * step_pack;
  if (at >= row.numel) return;
  if (row.aligned)
    step.template update<true>(row, factors, at);
  else
    step.template update<false>(row, factors, at);
}

/// The row of a parameter but for `first_block`. Its tensors are contiguous; states that are not defined do
/// not count.
template <class Range, class... States>
StepRow step_row(const char* op, const Range& p, const UpdateGate& gate, const States&... states) {
  require(p.master.dtype() == DType::f32, op, " on cuda: want f32, got ", p.master.dtype());
  const auto flat = [](const Tensor& t) { return t.defined() ? t.reshape({-1}) : t; };
  const Tensor copy = flat(p.model_copy);
  return {.master = data_of<float>(p.master),
          .grad = data_of<float>(p.grad),
          .model_copy = copy.defined() ? data_of<__nv_bfloat16>(copy) : nullptr,
          .finite = data_of<double>(gate.finite) + p.number,
          .lr_factor = p.lr_factor,
          .decay_factor = p.decay_factor,
          .numel = p.master.numel(),
          .first_block = 0,
          .aligned = rows_aligned(flat(p.master), flat(p.grad), copy, flat(states)...)};
}

/// Queues a kernel whose body is step_of_block() for rows of all parameters, at least one.
template <class Step>
void launch_step(const char* name,
                 void (*kernel)(const typename Step::Row*, int, const double*, const double*, const double*,
                                Step),
                 std::vector<typename Step::Row> rows, const Tensor& schedule, const UpdateGate& gate,
                 const Step& step) {
  static RangeTable<typename Step::Row> table("optimizer state");
  std::int64_t blocks = 0;
  for (auto& row : rows) {
    row.first_block = blocks;
    blocks += blocks_for(row.numel, step_block);
  }
  const int count = static_cast<int>(rows.size());
  launch(name, kernel, blocks_for(blocks, 1), step_threads, table.on_device(std::move(rows)), count,
         static_cast<const double*>(data_of<double>(schedule)),
         static_cast<const double*>(data_of<double>(gate.grad_scale)),
         static_cast<const double*>(data_of<double>(gate.go)), step);
}

}  // namespace nemocube::cuda
