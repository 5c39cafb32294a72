#include <algorithm>
#include <cfloat>
#include <cmath>

#include "ops/router/router.cuh"
#include "ops/router/router_kernels.h"

// A warp has a token: thread l has experts l, l + 32, .. of it. Sums over the chosen experts are in their
// order, as on the CPU; those over all experts are sums of the threads, added in a fixed order.
namespace nemocube::cuda::router {
namespace {

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

/// weights = scaling softmax over the logits of the chosen experts. The largest of them adds 1 to the sum.
__device__ void chosen_softmax(float* weights, const float* logits, const int* chosen, int k, float scaling) {
  float most = -INFINITY;
  for_own(k, [&](int j) { most = fmaxf(most, logits[chosen[j]]); });
  most = warp_max(most);
  const auto power = [&](int j) { return expf(logits[chosen[j]] - most); };
  const float sum = sum_in_order(k, power);
  for_own(k, [&](int j) { weights[j] = power(j) / sum * scaling; });
}

struct ChooseTensors {
  const float* logits = nullptr;  // null: the scores are there
  float* scores = nullptr;        // [tokens, n]; with softmax null: not wanted
  const float* bias = nullptr;    // null: none
  Rows<int> experts = {};
  Rows<float> weights = {};              // null: not wanted
  unsigned long long* counts = nullptr;  // null: not wanted
  std::int64_t tokens = 0;
  const std::int64_t* offsets = nullptr;  // of all tokens; beyond them rows are spare. Null: none are
  int n = 0, k = 0, groups = 1, group_size = 0, top_groups = 1;
  float scaling = 1;
  bool select = false, balanced = false, normalise = false;
  bool by_logits = false;  // with softmax scores: these are selected by logits
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

template <bool softmax>
__global__ void choose_kernel(const ChooseTensors t) {
  extern __shared__ unsigned keys_of_block[];  // for each warp n keys of experts, then those of groups
  const int lane = own_lane(), warp = threadIdx.x / warp_threads;
  const std::int64_t token = own_token(blockDim.x / warp_threads);
  if (token >= t.tokens) return;
  unsigned* const keys = keys_of_block + warp * (t.n + (t.top_groups < t.groups ? t.groups : 0));
  const bool spare = t.offsets && token >= t.offsets[1], with_keys = t.select && !t.balanced && !spare;
  float* const scores = t.scores + token * t.n;
  int* const chosen = t.experts.row(token);

  if constexpr (softmax) {
    const float* const logits = t.logits + token * t.n;
    const ExpSum of = t.scores ? exp_sum(logits, t.n) : ExpSum{0, 1};
    const float each = 1 / of.sum;
    for_own(t.n, [&](int i) {
      const float l = logits[i];
      float s = l;
      if (t.scores) scores[i] = s = expf(l - of.most) * each;
      if (with_keys) keys[i] = key_of(t.by_logits ? l : t.bias ? s + t.bias[i] : s);
    });
  } else {
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
  }

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
  if constexpr (softmax) {
    float* const weights = t.weights.row(token);
    if (t.normalise)
      chosen_softmax(weights, t.logits + token * t.n, chosen, t.k, t.scaling);
    else
      for_own(t.k, [&](int j) { weights[j] = scores[chosen[j]] * t.scaling; });
    return;
  }
  const float sum = sum_of_scores(scores, chosen, t.k), z = t.normalise ? sum + tiny : 1;
  for_own(t.k, [&](int j) { t.weights.row(token)[j] = scores[chosen[j]] / z * t.scaling; });
}

void launch_choose(const char* name, void (*kernel)(ChooseTensors), ChooseTensors t, const RouterOptions& o) {
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
  launch_shared(name, kernel, blocks_for(t.tokens, warps), static_cast<unsigned>(warps) * warp_threads,
                static_cast<std::size_t>(warps * bytes), t);
}

void choose(const Tensor& scores, const Tensor& experts, const Tensor& weights, const Tensor& counts,
            const Tensor& logits, const Tensor& bias, const RouterOptions& options, bool chosen,
            const Tensor& offsets) {
  const bool softmax = options.scores == RouterScores::softmax;
  launch_choose(
      "router: choice and weights", softmax ? choose_kernel<true> : choose_kernel<false>,
      {.logits = data_of<float>(logits),
       .scores = scores ? data_of<float>(scores) : nullptr,
       .bias = bias ? data_of<float>(bias) : nullptr,
       .experts = rows_of<std::int32_t>(experts),
       .weights = rows_of<float>(weights),
       .counts = counts ? reinterpret_cast<unsigned long long*>(data_of<std::int64_t>(counts)) : nullptr,
       .tokens = logits.rows(),
       .offsets = offsets ? data_of<std::int64_t>(offsets) : nullptr,
       .select = !chosen,
       .by_logits = selects_by_logits(options, bias)},
      options);
}

void select(const Tensor& experts, const Tensor& scores, const Tensor& bias, const RouterOptions& options) {
  launch_choose("router: choice", choose_kernel<false>,
                {.scores = data_of<float>(scores),
                 .bias = bias ? data_of<float>(bias) : nullptr,
                 .experts = rows_of<std::int32_t>(experts),
                 .tokens = scores.rows(),
                 .select = true},
                options);
}

struct BackwardTensors {
  float* dlogits;
  Rows<float> dweights;  // null: zero
  const float* scores;   // null where softmax does not need them
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

__global__ void __launch_bounds__(warps_of_block* warp_threads)
    softmax_backward_kernel(const BackwardTensors t, const Rows<float> weights, float per_scaling) {
  const std::int64_t token = own_token(warps_of_block);
  if (token >= t.tokens) return;
  float* const dlogits = t.dlogits + token * t.n;
  const int part = t.parts.of(token);
  if (part < 0) {
    for_own(t.n, [&](int i) { dlogits[i] = 0; });
    return;
  }
  const float* const factors = t.factors ? t.factors + std::int64_t{part} * t.n : nullptr;
  const float* const logits = t.logits ? t.logits + token * t.n : nullptr;
  const float* const scores = t.scores + token * t.n;
  const int* const chosen = t.experts.row(token);
  const float* const dw = t.dweights ? t.dweights.row(token) : nullptr;
  const bool sparse = dw && t.normalise, dense = factors || (dw && !t.normalise);

  float mixed = 0;  // the sum of ds s over all experts
  if (factors) {
    for_own(t.n, [&](int i) { mixed += factors[i] * scores[i]; });
    mixed = warp_sum(mixed);
  }
  if (dw && !t.normalise)
    mixed += t.scaling * sum_in_order(t.k, [&](int j) { return dw[j] * scores[chosen[j]]; });
  float lse = 0, z_factor = 0;
  if (logits) {
    lse = log_sum(logits, t.n);
    z_factor = static_cast<float>(t.z_scale / static_cast<double>(*t.count)) * lse;
  }
  // The gradient of logit i, when that of its score is `ds` but for the losses, and that of its share among
  // the chosen logits adds `d`.
  const auto gradient = [&](int i, float ds, float d) {
    if (dense) d += scores[i] * (ds + (factors ? factors[i] : 0) - mixed);
    if (logits) d += z_factor * expf(logits[i] - lse);
    return d;
  };
  for_own(t.n, [&](int i) { dlogits[i] = gradient(i, 0, 0); });
  if (!dw) return;
  __syncwarp();  // dlogits
  if (!sparse) {
    for_own(t.k, [&](int j) { dlogits[chosen[j]] = gradient(chosen[j], t.scaling * dw[j], 0); });
    return;
  }
  const float* const w = weights.row(token);
  const float mean = per_scaling * sum_in_order(t.k, [&](int j) { return dw[j] * w[j]; });
  for_own(t.k, [&](int j) { dlogits[chosen[j]] = gradient(chosen[j], 0, w[j] * (dw[j] - mean)); });
}

void backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& scores, const Tensor& weights,
              const Tensor& experts, const RouterOptions& o, const AuxGradient& aux) {
  const BackwardTensors t{.dlogits = data_of<float>(dlogits),
                          .dweights = rows_of<float>(dweights),
                          .scores = scores ? data_of<float>(scores) : nullptr,
                          .experts = rows_of<std::int32_t>(experts),
                          .factors = aux.factors ? data_of<float>(aux.factors) : nullptr,
                          .parts = Parts(aux.offsets),
                          .logits = aux.logits ? data_of<float>(aux.logits) : nullptr,
                          .count = aux.tokens ? data_of<std::int64_t>(aux.tokens) : nullptr,
                          .z_scale = aux.z_scale,
                          .tokens = dlogits.rows(),
                          .n = static_cast<int>(o.experts),
                          .k = static_cast<int>(o.top_k),
                          .scaling = static_cast<float>(o.scaling),
                          .normalise = o.normalise};
  if (t.tokens == 0) return;
  const unsigned blocks = blocks_for(t.tokens, warps_of_block), threads = warps_of_block * warp_threads;
  if (o.scores == RouterScores::softmax)
    launch("router backward", softmax_backward_kernel, blocks, threads, t, rows_of<float>(weights),
           t.scaling == 0 ? 0.0F : 1 / t.scaling);
  else
    launch("router backward", backward_kernel, blocks, threads, t);
}

const Provide provided[] = {{router_choose, choose}, {router_select, select}, {router_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda::router
