#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/adamw/adamw_kernels.h"

namespace nemocube::cuda {
namespace {

constexpr int threads = 256;

struct Tensors {
  float *master, *exp_avg, *exp_avg_sq;
  const float* grad;
  __nv_bfloat16* model_copy;  // null: none
  const double *grad_scale, *go;
  double* finite;
  std::int64_t numel;
};

// Each thread has N neighbours.
template <bool with_l2, int N>
__global__ void __launch_bounds__(threads) adamw_kernel(const Tensors t, const AdamWFactors<float> f) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (at >= t.numel || *t.go == 0) return;
  const std::int64_t count = t.numel - at;
  const auto scale = static_cast<float>(*t.grad_scale);
  float w[N], m[N], v[N], g[N];
  Pack<float, N>::load(t.master + at, count).read(w);
  Pack<float, N>::load(t.exp_avg + at, count).read(m);
  Pack<float, N>::load(t.exp_avg_sq + at, count).read(v);
  Pack<float, N>::load(t.grad + at, count).read(g);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    g[i] *= scale;
    if constexpr (with_l2) g[i] += f.l2 * w[i];
    m[i] = f.beta1 * m[i] + f.rest1 * g[i];
    v[i] = f.beta2 * v[i] + f.rest2 * g[i] * g[i];
    w[i] = w[i] * f.keep - f.rate * (m[i] / (sqrtf(v[i]) * f.root + f.eps));
  }
  Pack<float, N>::of(w).store(t.master + at, count);
  Pack<float, N>::of(m).store(t.exp_avg + at, count);
  Pack<float, N>::of(v).store(t.exp_avg_sq + at, count);
  if (t.model_copy) {
    const auto copy = Pack<__nv_bfloat16, N>::of(w);
    copy.store(t.model_copy + at, count);
    copy.read(w);  // not finite wherever the master is not
  }
  bool finite = true;
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < count) finite = finite && isfinite(w[i]) && isfinite(m[i]) && isfinite(v[i]);
  // An atomic, because threads of all blocks may write.
  if (!finite) atomicExch(reinterpret_cast<unsigned long long*>(t.finite), 0ULL);
}

template <int N>
void step_packs(const Tensors& t, const AdamWOptions& o) {
  const AdamWFactors<float> factors(o);
  const bool l2 = !o.decoupled && o.weight_decay != 0;
  launch("adamw step", l2 ? adamw_kernel<true, N> : adamw_kernel<false, N>,
         blocks_for(t.numel, std::int64_t{N} * threads), threads, t, factors);
}

void step(const Tensor& master, const Tensor& exp_avg, const Tensor& exp_avg_sq, const Tensor& grad,
          const Tensor& model_copy, const AdamWOptions& options, const UpdateGate& gate) {
  require(master.dtype() == DType::f32, "adamw on cuda: want f32, got ", master.dtype());
  const Tensors t{.master = data_of<float>(master),
                  .exp_avg = data_of<float>(exp_avg),
                  .exp_avg_sq = data_of<float>(exp_avg_sq),
                  .grad = data_of<float>(grad),
                  .model_copy = model_copy.defined() ? data_of<__nv_bfloat16>(model_copy) : nullptr,
                  .grad_scale = data_of<double>(gate.grad_scale),
                  .go = data_of<double>(gate.go),
                  .finite = data_of<double>(gate.finite),
                  .numel = master.numel()};
  if (rows_aligned(master.reshape({-1}), exp_avg.reshape({-1}), exp_avg_sq.reshape({-1}), grad.reshape({-1}),
                   model_copy.defined() ? model_copy.reshape({-1}) : model_copy))
    step_packs<whole_pack<float>>(t, options);
  else
    step_packs<1>(t, options);
}

const Provide provided(adamw_step_kernel, step);

}  // namespace
}  // namespace nemocube::cuda
