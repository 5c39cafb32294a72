#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "core/cuda/device.cuh"
#include "core/cuda/rows.cuh"
#include "core/cuda/warp.cuh"
#include "ops/sample_tokens/sample_tokens_kernels.h"

// A block draws for one row. It finds a token by the digits of its rank, from the highest on: one pass over
// the tokens gives the mass above each value of a digit. After some digits only few tokens are left, which
// are gathered.
namespace nemocube::cuda {
namespace {

constexpr int threads = 512, warps = threads / warp_threads;
constexpr int digit_bits = 3, digit_values = 1 << digit_bits;
constexpr int digits_before_gathering = 4;

// Tokens in the order of the draw: the larger rank is the likelier token, or of equally likely ones that with
// the lower id. No two tokens of a row have one rank.
using Rank = std::uint64_t;
constexpr Rank not_finite = ~Rank{0};

class Ranks {
 public:
  __device__ explicit Ranks(int vocabulary) { id_bits_ = 32 - __clz(vocabulary); }
  __device__ Rank of(float logit, int id) const {
    const unsigned bits = __float_as_uint(logit + 0.0F);  // -0 and 0 are equally likely
    const unsigned ascending = (bits & 0x80000000U) ? ~bits : bits | 0x80000000U;
    return Rank{ascending} << id_bits_ | (ids() - static_cast<unsigned>(id));
  }
  __device__ std::int64_t id(Rank rank) const { return ids() - (static_cast<unsigned>(rank) & ids()); }
  __device__ int digits() const { return (32 + id_bits_ + digit_bits - 1) / digit_bits; }

 private:
  __device__ unsigned ids() const { return (1U << id_bits_) - 1; }
  int id_bits_;
};

/// Where the blocks of all rows keep what they find, [rows, vocabulary] each. Null for greedy draws.
struct Scratch {
  Rank* ranks;
  double* weights;
  int* chosen;
};

struct Shared {
  union {
    cub::BlockReduce<double, threads>::TempStorage sum;
    cub::BlockReduce<Rank, threads>::TempStorage rank;
    cub::BlockScan<int, threads>::TempStorage scan;
    double of_warps[digit_values][warps];
  } scratch;
  double sum;
  Rank rank;
  double of_digits[digit_values];
};

/// Calls fn(i) for the thread's numbers below n in turn.
template <class Fn>
__device__ void for_own(int n, Fn&& fn) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < n; i += threads) fn(i);
}
/// Calls fn(i, logits[i]) for them. Loads of many logits are under way together.
template <class Fn>
__device__ void for_own_logits(const float* logits, int n, Fn&& fn) {
  constexpr unsigned at_once = 16;
  const auto count = static_cast<unsigned>(n);
  for (unsigned first = threadIdx.x; first < count; first += at_once * threads) {
    float logit[at_once];
#pragma unroll
    for (unsigned j = 0; j < at_once; ++j)
      if (first + j * threads < count) logit[j] = logits[first + j * threads];
#pragma unroll
    for (unsigned j = 0; j < at_once; ++j)
      if (first + j * threads < count) fn(static_cast<int>(first + j * threads), logit[j]);
  }
}

// All threads of the block call what follows together and get the same result.

template <class Reduce>
__device__ Rank reduced(Shared& shared, Rank own, Reduce reduce) {
  __syncthreads();
  const Rank rank = cub::BlockReduce<Rank, threads>(shared.scratch.rank).Reduce(own, reduce);
  if (threadIdx.x == 0) shared.rank = rank;
  __syncthreads();
  return shared.rank;
}

/// Calls put(place, i, rank) for the tokens whose rank is `wanted`, with places from 0 on; returns how many
/// there are.
template <class From, class Wanted, class Put>
__device__ int gather(Shared& shared, const From& tokens, Wanted&& wanted, Put&& put) {
  int own = 0, place = 0, all = 0;
  tokens.for_own_tokens([&](int, Rank rank, auto) { own += wanted(rank) ? 1 : 0; });
  __syncthreads();
  cub::BlockScan<int, threads>(shared.scratch.scan).ExclusiveSum(own, place, all);
  tokens.for_own_tokens([&](int i, Rank rank, auto) {
    if (wanted(rank)) put(place++, i, rank);
  });
  __syncthreads();
  return all;
}

/// Tokens with their ranks and weights.
struct Tokens {
  using Weight = double;
  const Rank* ranks;
  const double* weights;
  int count;

  __device__ Rank rank(int i) const { return ranks[i]; }
  __device__ double weight(int i) const { return weights[i]; }
  /// Calls fn(i, rank, weight).
  template <class Fn>
  __device__ void for_own_tokens(Fn&& fn) const {
    for_own(count, [&](int i) { fn(i, ranks[i], weights[i]); });
  }
  /// Of the tokens whose rank is at least `least`.
  __device__ double mass(Shared& shared, Rank least) const {
    double own = 0;
    for_own(count, [&](int i) {
      if (ranks[i] >= least) own += weights[i];
    });
    __syncthreads();
    const double sum = cub::BlockReduce<double, threads>(shared.scratch.sum).Sum(own);
    if (threadIdx.x == 0) shared.sum = sum;
    __syncthreads();
    return shared.sum;
  }
};
/// All tokens of a row, with weights of 1.
struct CountedTokens {
  using Weight = int;
  Ranks ranks;
  const float* logits;
  int count;

  __device__ Rank rank(int i) const { return ranks.of(logits[i], i); }
  __device__ int weight(int /*i*/) const { return 1; }
  template <class Fn>
  __device__ void for_own_tokens(Fn&& fn) const {
    for_own_logits(logits, count, [&](int i, float logit) { fn(i, ranks.of(logit, i), 1); });
  }
};

/// shared.of_digits[d] = the sum of the threads' sums[d], in a fixed order. Only the first `used` threads
/// have any.
template <class Weight>
__device__ void sum_digits(Shared& shared, const Weight (&sums)[digit_values], int used) {
  const int warp = static_cast<int>(threadIdx.x) / warp_threads,
            lane = static_cast<int>(threadIdx.x) % warp_threads;
  __syncthreads();
#pragma unroll
  for (int d = 1; d < digit_values; ++d) {
    const Weight sum = warp * warp_threads < used ? warp_sum(sums[d]) : 0;
    if (lane == 0) shared.scratch.of_warps[d][warp] = sum;
  }
  __syncthreads();
  static_assert(warps <= warp_threads && digit_values <= warps);
  if (warp > 0 && warp < digit_values) {
    const double sum = warp_sum(lane < warps ? shared.scratch.of_warps[warp][lane] : 0);
    if (lane == 0) shared.of_digits[warp] = sum;
  }
  __syncthreads();
}

/// The largest rank from which on the tokens have a mass that `enough` takes; 0 where even all of them have
/// less. `chosen`: room for the numbers of all tokens.
template <class From, class Enough>
__device__ Rank rank_where(Shared& shared, const From& tokens, int digits, int* chosen, Enough enough) {
  Rank found = 0;
  double above = 0;  // the mass of the tokens whose higher digits are larger
  int left = tokens.count;
  bool gathered = false;
  for (int digit = digits - 1; digit >= 0; --digit) {
    const int shift = digit * digit_bits;
    const auto alike = [&](Rank rank) {
      return (rank ^ found) >> shift < digit_values;
    };  // in the higher digits
    if (!gathered && left > threads && digits - 1 - digit == digits_before_gathering) {
      left = gather(shared, tokens, alike, [&](int place, int i, Rank) { chosen[place] = i; });
      gathered = true;
    }
    typename From::Weight sums[digit_values] = {};
    const auto add = [&](int, Rank rank, auto weight) {
      if (!alike(rank)) return;
      const int value = static_cast<int>(rank >> shift) & (digit_values - 1);
#pragma unroll
      for (int d = 1; d < digit_values; ++d)
        if (value >= d) sums[d] += weight;
    };
    if (gathered)
      for_own(left, [&](int place) { add(place, tokens.rank(chosen[place]), tokens.weight(chosen[place])); });
    else
      tokens.for_own_tokens(add);
    sum_digits(shared, sums, left);
    int value = digit_values - 1;
    while (value > 0 && !enough(above + shared.of_digits[value])) --value;
    if (value + 1 < digit_values) above += shared.of_digits[value + 1];
    found |= static_cast<Rank>(value) << shift;
  }
  return found;
}

/// The smallest rank of those that are at least `least`.
__device__ Rank smallest_from(Shared& shared, const Tokens& tokens, Rank least) {
  Rank own = ~Rank{0};
  for_own(tokens.count, [&](int i) {
    if (const Rank rank = tokens.rank(i); rank >= least) own = min(own, rank);
  });
  return reduced(shared, own, [](Rank a, Rank b) { return min(a, b); });
}

/// Draws from a row whose likeliest token is `best`.
__device__ Rank drawn(Shared& shared, const Ranks& ranks, const float* logits, int vocabulary, Rank best,
                      const Scratch& scratch, const SamplingOptions& o, double uniform) {
  const int digits = ranks.digits();
  const CountedTokens all{ranks, logits, vocabulary};
  Rank least = 0;
  if (o.top_k > 0 && o.top_k < vocabulary) {
    const auto wanted = static_cast<double>(o.top_k);
    least = rank_where(shared, all, digits, scratch.chosen, [=](double count) { return count >= wanted; });
  }
  const double largest = logits[ranks.id(best)], temperature = o.temperature;
  const int count = gather(
      shared, all, [&](Rank rank) { return rank >= least; },
      [&](int place, int, Rank rank) { scratch.ranks[place] = rank; });
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    const double logit = logits[ranks.id(scratch.ranks[i])];
    scratch.weights[i] = exp((logit - largest) / temperature);
  }
  __syncthreads();
  const Tokens tokens{scratch.ranks, scratch.weights, count};
  double mass = tokens.mass(shared, least);
  if (o.top_p < 1) {
    const double wanted = o.top_p * mass;
    least = max(
        least, rank_where(shared, tokens, digits, scratch.chosen, [=](double sum) { return sum >= wanted; }));
    least = min(least, best);
    mass = tokens.mass(shared, least);
  }
  const double target = uniform * mass;
  const Rank at =
      rank_where(shared, tokens, digits, scratch.chosen, [=](double sum) { return sum > target; });
  return smallest_from(shared, tokens, max(at, least));
}

__global__ void __launch_bounds__(threads)
    sample_kernel(std::int64_t* ids, Rows<const float> logits, int vocabulary, SamplingOptions o,
                  const double* uniform, Scratch scratch) {
  __shared__ Shared shared;
  const float* const row = logits.row(blockIdx.x);
  const Ranks ranks(vocabulary);
  Rank best = 0;
  for_own_logits(row, vocabulary, [&](int i, float logit) {
    best = max(best, isfinite(logit) ? ranks.of(logit, i) : not_finite);
  });
  best = reduced(shared, best, [](Rank a, Rank b) { return max(a, b); });
  if (best == not_finite) {
    if (threadIdx.x == 0) ids[blockIdx.x] = -1;
    return;
  }
  Rank chosen = best;
  if (o.temperature > 0) {
    const std::int64_t own = std::int64_t{blockIdx.x} * vocabulary;
    chosen =
        drawn(shared, ranks, row, vocabulary, best,
              {scratch.ranks + own, scratch.weights + own, scratch.chosen + own}, o, uniform[blockIdx.x]);
  }
  if (threadIdx.x == 0) ids[blockIdx.x] = ranks.id(chosen);
}

void draw(const Tensor& ids, const Tensor& logits, const SamplingOptions& options, const Tensor& uniform) {
  const Rows<float> rows = rows_of<float>(logits);
  Tensor ranks, weights, chosen;
  Scratch scratch{};
  if (options.temperature > 0) {
    ranks = Tensor::empty(logits.shape(), DType::i64, logits.device());
    weights = Tensor::empty(logits.shape(), DType::f64, logits.device());
    chosen = Tensor::empty(logits.shape(), DType::i32, logits.device());
    scratch = {reinterpret_cast<Rank*>(data_of<std::int64_t>(ranks)), data_of<double>(weights),
               data_of<std::int32_t>(chosen)};
  }
  launch("sample_tokens", sample_kernel, blocks_for(logits.rows(), 1), threads, data_of<std::int64_t>(ids),
         Rows<const float>{rows.start, rows.stride}, static_cast<int>(logits.cols()), options,
         data_of<double>(uniform), scratch);
}

const Provide provided(sample_tokens_kernel, draw);

}  // namespace
}  // namespace nemocube::cuda
