#include <algorithm>
#include <cmath>

#include "core/add_kernels.h"
#include "ops/router/router.cuh"
#include "ops/router/router_kernels.h"

namespace nemocube::cuda::router {
namespace {

constexpr int count_threads = 256;

__global__ void __launch_bounds__(count_threads)
    count_kernel(Rows<std::int64_t> table, Rows<int> experts, Parts parts, std::int64_t tokens, int n,
                 int k) {
  const std::int64_t at = std::int64_t{blockIdx.x} * count_threads + threadIdx.x;
  if (at < parts.count) table.row(at)[n] = parts.tokens_of(static_cast<int>(at), tokens);
  if (n == 0 || at >= tokens * k) return;
  const std::int64_t token = at / k;
  const int part = parts.of(token);
  if (part < 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(table.row(part) + experts.row(token)[at % k]), 1ULL);
}

void count(const Tensor& table, const Tensor& experts, const Tensor& offsets) {
  if (table.rows() == 0) return;
  const int n = static_cast<int>(table.cols() - 1), k = static_cast<int>(experts.cols());
  if (n > 0) table.zero();
  const std::int64_t tokens = experts.rows(), choices = n > 0 ? tokens * k : 0;
  launch("router: count", count_kernel, blocks_for(std::max(choices, table.rows()), count_threads),
         count_threads, rows_of<std::int64_t>(table), rows_of<std::int32_t>(experts), Parts(offsets), tokens,
         n, k);
}

// A block has 32 columns, each of its warps a share of the parts.
__global__ void __launch_bounds__(count_threads)
    sum_parts_kernel(std::int64_t* sum, Rows<std::int64_t> table, std::int64_t parts, std::int64_t n) {
  constexpr int warps = count_threads / warp_threads;
  __shared__ std::int64_t of_warps[warps][warp_threads];
  const int warp = static_cast<int>(threadIdx.x) / warp_threads;
  const std::int64_t i = std::int64_t{blockIdx.x} * warp_threads + own_lane();
  std::int64_t own = 0;
  if (i < n) {
#pragma unroll 8
    for (std::int64_t q = warp; q < parts; q += warps) own += table.row(q)[i];
  }
  of_warps[warp][own_lane()] = own;
  __syncthreads();
  if (warp > 0 || i >= n) return;
  for (int other = 1; other < warps; ++other) own += of_warps[other][own_lane()];
  sum[i] = own;
}

void sum_parts(const Tensor& sum, const Tensor& table) {
  launch("router: sum of parts", sum_parts_kernel, blocks_for(sum.numel(), warp_threads), count_threads,
         data_of<std::int64_t>(sum), rows_of<std::int64_t>(table), table.rows(), sum.numel());
}

struct BalanceTensors {
  Rows<std::int64_t> table;
  const std::int64_t *tokens, *whole, *totals;
  Rows<float> sequences, sum;
  float *microbatch, *global;  // null, as `sequences`: no such loss
  std::int64_t parts;
  int n;
  // Coefficient times E / k.
  double of_sequences, of_microbatch, of_global;
  float scale;
};

// A block has a part.
__global__ void __launch_bounds__(count_threads) balance_kernel(const BalanceTensors t) {
  const std::int64_t part = blockIdx.x;
  const auto tokens_of = [&](std::int64_t q) { return t.table.row(q)[t.n]; };
  const auto each = [](double coef, std::int64_t counted, std::int64_t tokens) {
    return coef / (static_cast<double>(counted) * static_cast<double>(tokens));
  };
  double of_sequence = 0;
  if (t.sequences) {
    int filled = 0;
    for (std::int64_t first = 0; first < t.parts; first += count_threads) {
      const std::int64_t q = first + threadIdx.x;
      filled += __syncthreads_count(q < t.parts && tokens_of(q) > 0);
    }
    const std::int64_t tokens = tokens_of(part);
    if (tokens > 0) of_sequence = each(t.of_sequences / filled, tokens, tokens);
  }
  const double of_microbatch = t.microbatch ? each(t.of_microbatch, *t.tokens, *t.tokens) : 0,
               of_global = t.global ? each(t.of_global, t.totals[t.n], *t.tokens) : 0;
  for (int i = threadIdx.x; i < t.n; i += count_threads) {
    const auto factor = [i](double of_count, const std::int64_t* counts) {
      return static_cast<float>(of_count * static_cast<double>(counts[i]));
    };
    float sum = 0;
    if (t.sequences) t.sequences.row(part)[i] = sum = factor(of_sequence, t.table.row(part));
    if (t.microbatch) {
      const float own = factor(of_microbatch, t.whole);
      if (part == 0) t.microbatch[i] = own;
      sum += own;
    }
    if (t.global) {
      const float own = factor(of_global, t.totals);
      if (part == 0) t.global[i] = own;
      sum += own;
    }
    t.sum.row(part)[i] = sum * t.scale;
  }
}

void balance(const BalanceFactors& f, const RouterOptions& o) {
  const double per_choice = static_cast<double>(o.experts) / static_cast<double>(o.top_k);
  const std::int64_t* whole = data_of<std::int64_t>(f.whole);
  const BalanceTensors t{.table = rows_of<std::int64_t>(f.table),
                         .tokens = whole + (f.whole.numel() - 1),
                         .whole = whole,
                         .totals = f.totals ? data_of<std::int64_t>(f.totals) : nullptr,
                         .sequences = rows_of<float>(f.sequences),
                         .sum = rows_of<float>(f.sum),
                         .microbatch = f.microbatch ? data_of<float>(f.microbatch) : nullptr,
                         .global = f.global ? data_of<float>(f.global) : nullptr,
                         .parts = f.sum.rows(),
                         .n = static_cast<int>(o.experts),
                         .of_sequences = o.seq_aux_loss_coef * per_choice,
                         .of_microbatch = o.aux_loss_coef * per_choice,
                         .of_global = o.global_aux_loss_coef * per_choice,
                         .scale = static_cast<float>(o.aux_grad_scale)};
  launch("router: balance", balance_kernel, blocks_for(t.parts, 1), count_threads, t);
}

// Losses: every block sums terms of tokens in f64, warp after warp; one warp adds the sums of the blocks.
constexpr std::int64_t most_loss_blocks = 512;

struct LossTensors {
  const float *values, *factors;  // factors null: z-loss of logits, else balancing loss of scores
  Parts parts;
  std::int64_t tokens;
  int n;
};

__device__ double term_of(const LossTensors& t, std::int64_t token) {
  const float* const values = t.values + token * t.n;
  const int part = t.parts.of(token);
  if (part < 0) return 0;
  if (!t.factors) {
    const double lse = log_sum(values, t.n);
    return lse * lse;
  }
  const float* const factors = t.factors + std::int64_t{part} * t.n;
  double z = 0, sum = 0;
  for_own(t.n, [&](int i) {
    z += values[i];
    sum += static_cast<double>(factors[i]) * values[i];
  });
  return warp_sum(sum) / (warp_sum(z) + 1e-20);
}

__global__ void __launch_bounds__(warps_of_block* warp_threads)
    loss_kernel(double* partial, const LossTensors t) {
  __shared__ double of_warps[warps_of_block];
  double sum = 0;
  for (std::int64_t token = own_token(warps_of_block); token < t.tokens;
       token += std::int64_t{gridDim.x} * warps_of_block)
    sum += term_of(t, token);
  if (own_lane() == 0) of_warps[threadIdx.x / warp_threads] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < warps_of_block; ++w) sum += of_warps[w];
  partial[blockIdx.x] = sum;
}

/// loss = coef times the sum of `partial`, divided by `tokens` unless that is null.
__global__ void sum_losses_kernel(double* loss, const double* partial, int count, double coef,
                                  const std::int64_t* tokens) {
  double sum = 0;
  for_own(count, [&](int i) { sum += partial[i]; });
  sum = warp_sum(sum);
  if (threadIdx.x == 0) *loss = tokens ? coef * sum / static_cast<double>(*tokens) : sum;
}

void sum_terms(const Tensor& loss, const LossTensors& t, double coef, const std::int64_t* tokens) {
  const auto blocks = std::min<std::int64_t>(most_loss_blocks, blocks_for(t.tokens, warps_of_block));
  const Tensor partial = Tensor::empty({blocks}, DType::f64, loss.device());
  double* const sums = data_of<double>(partial);
  if (blocks > 0)
    launch("router: losses of tokens", loss_kernel, static_cast<unsigned>(blocks),
           warps_of_block * warp_threads, sums, t);
  launch("router: loss", sum_losses_kernel, 1, warp_threads, data_of<double>(loss), sums,
         static_cast<int>(blocks), coef, tokens);
}

void balance_loss(const Tensor& loss, const Tensor& scores, const Tensor& factors, const Tensor& offsets) {
  sum_terms(loss,
            {.values = data_of<float>(scores),
             .factors = data_of<float>(factors),
             .parts = Parts(offsets),
             .tokens = scores.rows(),
             .n = static_cast<int>(scores.cols())},
            1, nullptr);
}

void z_loss(const Tensor& loss, const Tensor& logits, const Tensor& tokens, double coef,
            const Tensor& offsets) {
  sum_terms(loss,
            {.values = data_of<float>(logits),
             .factors = nullptr,
             .parts = Parts(offsets),
             .tokens = logits.rows(),
             .n = static_cast<int>(logits.cols())},
            coef, data_of<std::int64_t>(tokens));
}

void add_to_counts(const Tensor& sum, const Tensor& counts) {
  if (sum.numel() > 0) add_elements_kernel.on_cuda(sum, sum, counts);
}

// One block has all experts.
__global__ void __launch_bounds__(count_threads)
    bias_kernel(float* bias, const std::int64_t* counts, std::int64_t n, float rate, const double* go,
                double* finite) {
  __shared__ std::int64_t of_warps[count_threads / warp_threads];
  if (*go == 0) return;
  std::int64_t sum = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += count_threads) sum += counts[i];
  sum = warp_sum(sum);
  if (own_lane() == 0) of_warps[threadIdx.x / warp_threads] = sum;
  __syncthreads();
  sum = 0;
  for (const std::int64_t of_warp : of_warps) sum += of_warp;
  bool all_finite = true;
  for (std::int64_t i = threadIdx.x; i < n; i += count_threads) {
    const std::int64_t share = counts[i] * n;
    const float moved = bias[i] + (share < sum ? rate : share > sum ? -rate : 0);
    bias[i] = moved;
    all_finite = all_finite && isfinite(moved);
  }
  if (__syncthreads_or(!all_finite) && threadIdx.x == 0) *finite = 0;
}

void update_bias(const Tensor& bias, const Tensor& counts, double rate, const UpdateGate& gate) {
  launch("update_expert_bias", bias_kernel, 1, count_threads, data_of<float>(bias),
         static_cast<const std::int64_t*>(data_of<std::int64_t>(counts)), bias.numel(),
         static_cast<float>(rate), static_cast<const double*>(data_of<double>(gate.go)),
         data_of<double>(gate.finite));
}

const Provide provided[] = {{router_count, count},
                            {router_sum_parts, sum_parts},
                            {router_balance, balance},
                            {router_balance_loss, balance_loss},
                            {router_z_loss, z_loss},
                            {add_counts_kernel, add_to_counts},
                            {update_expert_bias_kernel, update_bias}};

}  // namespace
}  // namespace nemocube::cuda::router
