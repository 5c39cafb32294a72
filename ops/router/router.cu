#include <algorithm>
#include <cfloat>
#include <cmath>

#include "core/add_kernels.h"
#include "core/cuda/device.cuh"
#include "core/cuda/rows.cuh"
#include "core/cuda/warp.cuh"
#include "ops/router/router_kernels.h"

// A warp has a token: thread l has experts l, l + 32, .. of it. Sums over the chosen experts are in their
// order, as on the CPU; those over all experts are sums of the threads, added in a fixed order.
namespace nemocube::cuda {
namespace {

constexpr int warps_of_block = 8;
constexpr float tiny = 1e-20F;  // keeps a sum of scores above 0

__device__ int own_lane() { return threadIdx.x % warp_threads; }
__device__ std::int64_t own_token(int warps) {
  return std::int64_t{blockIdx.x} * warps + threadIdx.x / warp_threads;
}

/// Calls fn(i) for the numbers of the thread among `count`.
template <class Fn>
__device__ void for_own(int count, Fn&& fn) {
  for (int i = own_lane(); i < count; i += warp_threads) fn(i);
}

/// The sum of value(j) for j in [0, count), from the first to the last, in all threads. Thread j % 32 calls
/// value(j).
template <class Value>
__device__ float sum_in_order(int count, Value&& value) {
  float sum = 0;
  for (int first = 0; first < count; first += warp_threads) {
    const int j = first + own_lane();
    const float own = j < count ? value(j) : 0;
    for (int lane = 0; lane < min(warp_threads, count - first); ++lane)
      sum += __shfl_sync(whole_warp, own, lane);
  }
  return sum;
}

__device__ float sum_of_scores(const float* scores, const int* chosen, int count) {
  return sum_in_order(count, [&](int j) { return scores[chosen[j]]; });
}

// Selection works on keys: whole numbers above 1 in the order of the values. Others are marks.
constexpr unsigned taken = 0, left_out = 1;

/// NaN and -inf count as the lowest finite value.
__device__ unsigned key_of(float value) {
  const float v = value > -FLT_MAX ? value + 0.0F : -FLT_MAX;  // -0 + 0 = 0
  const unsigned bits = __float_as_uint(v);
  return bits >> 31 ? ~bits : bits | 0x80000000U;
}
__device__ float value_of(unsigned key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffU : ~key); }

/// Takes the largest of `count` keys, then the next largest, and so on; ties go to the lowest index. Each
/// thread knows the first largest of its own keys.
class Largest {
 public:
  __device__ Largest(unsigned* keys, int count) : keys_(keys), count_(count) { look(); }
  __device__ void take() {
    const unsigned most = __reduce_max_sync(whole_warp, best_);
    const unsigned at = __reduce_min_sync(whole_warp, best_ == most ? at_ : ~0U);
    if (at != at_ || best_ != most) return;
    keys_[at] = taken;
    look();
  }

 private:
  __device__ void look() {
    best_ = taken;
    for_own(count_, [&](int i) {
      if (keys_[i] <= best_) return;
      best_ = keys_[i];
      at_ = i;
    });
  }
  unsigned* keys_;
  int count_;
  unsigned best_ = taken, at_ = 0;
};

/// The sum of the two largest values of a group, or its only value. Groups start at different places, because
/// all threads read at the same time, each from another bank of shared memory.
__device__ float group_score(const unsigned* keys, int size, int group) {
  if (size == 1) return value_of(keys[0]);
  unsigned first = taken, second = taken;
  int at = group % size;
  for (int i = 0; i < size; ++i) {
    const unsigned key = keys[at];
    second = max(second, min(first, key));
    first = max(first, key);
    if (++at == size) at = 0;
  }
  return value_of(first) + value_of(second);
}

struct ChooseTensors {
  const float* logits = nullptr;  // null: the scores are there
  float* scores = nullptr;        // [tokens, n]
  const float* bias = nullptr;    // null: none
  Rows<int> experts = {};
  Rows<float> weights = {};              // null: not wanted
  unsigned long long* counts = nullptr;  // null: not wanted
  std::int64_t tokens = 0;
  const std::int64_t* offsets = nullptr;  // of all tokens; beyond them rows are spare. Null: none are
  int n = 0, k = 0, groups = 1, group_size = 0, top_groups = 1;
  float scaling = 1;
  bool select = false, balanced = false, normalise = false;
};

/// Marks the k chosen keys of a token as taken. Afterwards each thread sees the marks of all.
__device__ void mark_chosen(const ChooseTensors& t, unsigned* keys) {
  if (t.top_groups < t.groups) {
    unsigned* const groups = keys + t.n;
    __syncwarp();
    for_own(t.groups,
            [&](int g) { groups[g] = key_of(group_score(keys + g * t.group_size, t.group_size, g)); });
    Largest largest(groups, t.groups);
    for (int i = 0; i < t.top_groups; ++i) largest.take();
    __syncwarp();
    for_own(t.n, [&](int i) {
      if (groups[i / t.group_size] != taken) keys[i] = left_out;
    });
  }
  Largest largest(keys, t.n);
  for (int j = 0; j < t.k; ++j) largest.take();
}

__global__ void choose_kernel(const ChooseTensors t) {
  extern __shared__ unsigned keys_of_block[];  // for each warp n keys of experts, then those of groups
  const int lane = own_lane(), warp = threadIdx.x / warp_threads;
  const std::int64_t token = own_token(blockDim.x / warp_threads);
  if (token >= t.tokens) return;
  unsigned* const keys = keys_of_block + warp * (t.n + (t.top_groups < t.groups ? t.groups : 0));
  const bool spare = t.offsets && token >= t.offsets[1], with_keys = t.select && !t.balanced && !spare;
  float* const scores = t.scores + token * t.n;
  int* const chosen = t.experts.row(token);

  for_own(t.n, [&](int i) {
    float s;
    if (t.logits) {
      s = 1 / (1 + expf(-t.logits[token * t.n + i]));
      scores[i] = s;
    } else {
      s = scores[i];
    }
    if (with_keys) keys[i] = key_of(t.bias ? s + t.bias[i] : s);
  });

  const auto choose = [&](int j, int expert) {
    chosen[j] = expert;
    if (t.counts && !spare) atomicAdd(t.counts + expert, 1ULL);
  };
  if (with_keys) {
    mark_chosen(t, keys);
    int before = 0;
    for (int first = 0; first < t.n; first += warp_threads) {
      const int i = first + lane;
      const bool own = i < t.n && keys[i] == taken;
      const unsigned all = __ballot_sync(whole_warp, own);
      if (own) choose(before + __popc(all & ((1U << lane) - 1)), i);
      before += __popc(all);
    }
  } else if (t.select) {
    // k experts in turn from `start` on. Those beyond the last expert go on at 0.
    const int start = static_cast<int>(token * t.k % t.n), beyond = max(0, start + t.k - t.n);
    for_own(t.k, [&](int j) { choose(j, j < beyond ? j : start + j - beyond); });
  }

  if (!t.weights) return;
  __syncwarp();  // scores and chosen
  const float sum = sum_of_scores(scores, chosen, t.k), z = t.normalise ? sum + tiny : 1;
  for_own(t.k, [&](int j) { t.weights.row(token)[j] = scores[chosen[j]] / z * t.scaling; });
}

void launch_choose(const char* name, ChooseTensors t, const RouterOptions& o) {
  if (t.tokens == 0) return;
  t.n = static_cast<int>(o.experts);
  t.k = static_cast<int>(o.top_k);
  t.groups = static_cast<int>(o.groups);
  t.group_size = static_cast<int>(o.experts / o.groups);
  t.top_groups = static_cast<int>(o.top_groups);
  t.scaling = static_cast<float>(o.scaling);
  t.balanced = o.balanced;
  t.normalise = o.normalise;
  int warps = warps_of_block;
  std::int64_t bytes = 0;  // of a warp
  if (t.select && !t.balanced) {
    bytes = (o.experts + (o.top_groups < o.groups ? o.groups : 0)) * std::int64_t{sizeof(unsigned)};
    const std::int64_t most = device_limits().shared_bytes;
    require(bytes <= most, "route on cuda: want at most ", most / std::int64_t{sizeof(unsigned)},
            " experts and groups, got ", o.experts, " experts in ", o.groups, " groups");
    while (warps > 1 && warps * bytes > 48 * 1024) warps /= 2;
  }
  launch_shared(name, choose_kernel, blocks_for(t.tokens, warps), static_cast<unsigned>(warps) * warp_threads,
                static_cast<std::size_t>(warps * bytes), t);
}

void choose(const Tensor& scores, const Tensor& experts, const Tensor& weights, const Tensor& counts,
            const Tensor& logits, const Tensor& bias, const RouterOptions& options, bool chosen,
            const Tensor& offsets) {
  launch_choose(
      "router: choice and weights",
      {.logits = data_of<float>(logits),
       .scores = data_of<float>(scores),
       .bias = bias ? data_of<float>(bias) : nullptr,
       .experts = rows_of<std::int32_t>(experts),
       .weights = rows_of<float>(weights),
       .counts = counts ? reinterpret_cast<unsigned long long*>(data_of<std::int64_t>(counts)) : nullptr,
       .tokens = scores.rows(),
       .offsets = offsets ? data_of<std::int64_t>(offsets) : nullptr,
       .select = !chosen},
      options);
}

void select(const Tensor& experts, const Tensor& scores, const Tensor& bias, const RouterOptions& options) {
  launch_choose("router: choice",
                {.scores = data_of<float>(scores),
                 .bias = bias ? data_of<float>(bias) : nullptr,
                 .experts = rows_of<std::int32_t>(experts),
                 .tokens = scores.rows(),
                 .select = true},
                options);
}

/// Offsets of the parts that tokens form; null: one part.
struct Parts {
  const std::int64_t* offsets = nullptr;
  int count = 1;
  explicit Parts(const Tensor& t) {
    if (!t.defined()) return;
    offsets = data_of<std::int64_t>(t);
    count = static_cast<int>(t.numel() - 1);
  }
  /// The part of a token: the last one that begins with it or before; -1 for a spare row.
  __device__ int of(std::int64_t token) const {
    if (!offsets) return 0;
    if (token >= offsets[count]) return -1;
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (offsets[middle] <= token ? low : high) = middle;
    }
    return low;
  }
  __device__ std::int64_t tokens_of(int part, std::int64_t all) const {
    return offsets ? offsets[part + 1] - offsets[part] : all;
  }
};

/// log sum_i exp l_i, in all threads.
__device__ float log_sum(const float* logits, int n) {
  float most = -INFINITY, sum = 0;
  for_own(n, [&](int i) { most = fmaxf(most, logits[i]); });
  most = warp_max(most);
  for_own(n, [&](int i) { sum += expf(logits[i] - most); });
  return most + logf(warp_sum(sum));
}

struct BackwardTensors {
  float* dlogits;
  Rows<float> dweights;  // null: zero
  const float* scores;
  Rows<int> experts;
  const float* factors;  // [parts, n]; null: none
  Parts parts;
  const float* logits;  // for z-loss; null: none
  const std::int64_t* count;
  double z_scale;
  std::int64_t tokens;
  int n, k;
  float scaling;
  bool normalise;
};

__global__ void __launch_bounds__(warps_of_block* warp_threads) backward_kernel(const BackwardTensors t) {
  const std::int64_t token = own_token(warps_of_block);
  if (token >= t.tokens) return;
  const float* const scores = t.scores + token * t.n;
  const int part = t.parts.of(token);
  if (part < 0) {
    for_own(t.n, [&](int i) { t.dlogits[token * t.n + i] = 0; });
    return;
  }
  const float* const factors = t.factors ? t.factors + std::int64_t{part} * t.n : nullptr;
  const float* const logits = t.logits ? t.logits + token * t.n : nullptr;
  float* const dlogits = t.dlogits + token * t.n;

  float all = 0, mean_factor = 0;  // sums over all experts
  if (factors) {
    for_own(t.n, [&](int i) {
      all += scores[i];
      mean_factor += factors[i] * scores[i];
    });
    all = warp_sum(all) + tiny;
    mean_factor = warp_sum(mean_factor) / all;
  }
  float lse = 0, z_factor = 0;
  if (logits) {
    lse = log_sum(logits, t.n);
    z_factor = static_cast<float>(t.z_scale / static_cast<double>(*t.count)) * lse;
  }
  // The gradient of logit i, when that of its score is `ds` but for the losses.
  const auto gradient = [&](int i, float ds) {
    const float s = scores[i];
    if (factors) ds += (factors[i] - mean_factor) / all;
    float d = ds * (s * (1 - s));
    if (logits) d += z_factor * expf(logits[i] - lse);
    return d;
  };
  for_own(t.n, [&](int i) { dlogits[i] = gradient(i, 0); });

  if (!t.dweights) return;
  const int* const chosen = t.experts.row(token);
  const float* const dw = t.dweights.row(token);
  float z = 1, mixed = 0;
  if (t.normalise) {
    z = sum_of_scores(scores, chosen, t.k) + tiny;
    mixed = sum_in_order(t.k, [&](int j) { return dw[j] * (scores[chosen[j]] / z); });
  }
  __syncwarp();  // dlogits
  for_own(t.k, [&](int j) { dlogits[chosen[j]] = gradient(chosen[j], t.scaling * (dw[j] - mixed) / z); });
}

void backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& scores, const Tensor& experts,
              const RouterOptions& o, const AuxGradient& aux) {
  const BackwardTensors t{.dlogits = data_of<float>(dlogits),
                          .dweights = rows_of<float>(dweights),
                          .scores = data_of<float>(scores),
                          .experts = rows_of<std::int32_t>(experts),
                          .factors = aux.factors ? data_of<float>(aux.factors) : nullptr,
                          .parts = Parts(aux.offsets),
                          .logits = aux.logits ? data_of<float>(aux.logits) : nullptr,
                          .count = aux.tokens ? data_of<std::int64_t>(aux.tokens) : nullptr,
                          .z_scale = aux.z_scale,
                          .tokens = scores.rows(),
                          .n = static_cast<int>(o.experts),
                          .k = static_cast<int>(o.top_k),
                          .scaling = static_cast<float>(o.scaling),
                          .normalise = o.normalise};
  if (t.tokens > 0)
    launch("router backward", backward_kernel, blocks_for(t.tokens, warps_of_block),
           warps_of_block * warp_threads, t);
}

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

const Provide provided[] = {{router_choose, choose},
                            {router_select, select},
                            {router_backward, backward},
                            {router_count, count},
                            {router_sum_parts, sum_parts},
                            {router_balance, balance},
                            {router_balance_loss, balance_loss},
                            {router_z_loss, z_loss},
                            {add_counts_kernel, add_to_counts},
                            {update_expert_bias_kernel, update_bias}};

}  // namespace
}  // namespace nemocube::cuda
