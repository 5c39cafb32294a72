#include <cub/block/block_reduce.cuh>

#include "core/cuda/device.cuh"
#include "core/cuda/rows.cuh"
#include "ops/sample_tokens/sample_tokens_kernels.h"

namespace nemocube::cuda {
namespace {

constexpr int threads = 512;

// Tokens in the order of the draw: the larger rank is the likelier token, or of equally likely ones that with the lower
// id. No two tokens of a row have one rank.
using Rank = std::uint64_t;

__device__ Rank rank_of(float logit, unsigned id) {
  const unsigned bits = __float_as_uint(logit + 0.0F);  // -0 and 0 are equally likely
  const unsigned ascending = (bits & 0x80000000U) ? ~bits : bits | 0x80000000U;
  return Rank{ascending} << 32 | (0xffffffffU - id);
}
__device__ std::int64_t id_of(Rank rank) { return 0xffffffffU - static_cast<unsigned>(rank); }

// A row of logits. All threads of the block call each function together and get the same result; sums are formed in the
// same order in every call.
class Row {
 public:
  struct Shared {
    union {
      cub::BlockReduce<double, threads>::TempStorage sum;
      cub::BlockReduce<Rank, threads>::TempStorage rank;
    } scratch;
    double sum;
    Rank rank;
  };

  __device__ Row(Shared& shared, const float* logits, int count)
      : shared_(shared), logits_(logits), count_(count) {}

  // The sum of weight(logit) over the tokens whose rank is at least `least`.
  template <class Weight>
  __device__ double mass(Rank least, Weight weight) const {
    double own = 0;
    for (int i = threadIdx.x; i < count_; i += threads)
      if (rank_of(logits_[i], i) >= least) own += weight(logits_[i]);
    __syncthreads();
    const double sum = cub::BlockReduce<double, threads>(shared_.scratch.sum).Sum(own);
    if (threadIdx.x == 0) shared_.sum = sum;
    __syncthreads();
    return shared_.sum;
  }

  // The largest rank, or the smallest of those that are at least `least`.
  __device__ Rank largest() const {
    Rank own = 0;
    for (int i = threadIdx.x; i < count_; i += threads) own = max(own, rank_of(logits_[i], i));
    return reduced(own, [](Rank a, Rank b) { return max(a, b); });
  }
  __device__ Rank smallest_from(Rank least) const {
    Rank own = ~Rank{0};
    for (int i = threadIdx.x; i < count_; i += threads)
      if (const Rank rank = rank_of(logits_[i], i); rank >= least) own = min(own, rank);
    return reduced(own, [](Rank a, Rank b) { return min(a, b); });
  }

  // The largest rank from which on the tokens have a mass that `enough` takes; `least` where even all of those from
  // `least` on have less. Masses grow as ranks fall, so bits are found from the highest on.
  template <class Weight, class Enough>
  __device__ Rank rank_where(Rank least, Weight weight, Enough enough) const {
    const int id_bits = 32 - __clz(count_);
    Rank found = (0xffffffffULL >> id_bits) << id_bits;  // which all ranks have
    for (int bit = 63; bit >= 0; --bit) {
      if (bit < 32 && bit >= id_bits) continue;
      const Rank candidate = found | Rank{1} << bit;
      if (enough(mass(candidate, weight))) found = candidate;
    }
    return max(found, least);
  }

 private:
  template <class Reduce>
  __device__ Rank reduced(Rank own, Reduce reduce) const {
    __syncthreads();
    const Rank rank = cub::BlockReduce<Rank, threads>(shared_.scratch.rank).Reduce(own, reduce);
    if (threadIdx.x == 0) shared_.rank = rank;
    __syncthreads();
    return shared_.rank;
  }

  Shared& shared_;
  const float* logits_;
  int count_;
};

// A block draws for one row.
__global__ void __launch_bounds__(threads)
    sample_kernel(std::int64_t* ids, Rows<const float> logits, int vocabulary, SamplingOptions o,
                  const double* uniform) {
  __shared__ Row::Shared shared;
  const float* const row_logits = logits.row(blockIdx.x);
  int finite = 1;
  for (int i = threadIdx.x; i < vocabulary; i += threads) finite = finite && isfinite(row_logits[i]);
  if (!__syncthreads_and(finite)) {
    if (threadIdx.x == 0) ids[blockIdx.x] = -1;
    return;
  }
  const Row row(shared, row_logits, vocabulary);
  const Rank best = row.largest();
  Rank chosen = best;
  if (o.temperature > 0) {
    const double largest = row_logits[id_of(best)], temperature = o.temperature;
    const auto weight = [=](float logit) {
      return exp((static_cast<double>(logit) - largest) / temperature);
    };
    Rank kept = 0;
    if (o.top_k > 0 && o.top_k < vocabulary) {
      const auto wanted = static_cast<double>(o.top_k);
      kept = row.rank_where(
          kept, [](float) { return 1.0; }, [=](double count) { return count >= wanted; });
    }
    double mass = row.mass(kept, weight);
    if (o.top_p < 1) {
      const double wanted = o.top_p * mass;
      kept = row.rank_where(kept, weight, [=](double sum) { return sum >= wanted; });
      kept = min(kept, best);
      mass = row.mass(kept, weight);
    }
    const double target = uniform[blockIdx.x] * mass;
    chosen = row.smallest_from(row.rank_where(kept, weight, [=](double sum) { return sum > target; }));
  }
  if (threadIdx.x == 0) ids[blockIdx.x] = id_of(chosen);
}

void draw(const Tensor& ids, const Tensor& logits, const SamplingOptions& options, const Tensor& uniform) {
  const Rows<float> rows = rows_of<float>(logits);
  launch("sample_tokens", sample_kernel, blocks_for(logits.rows(), 1), threads, data_of<std::int64_t>(ids),
         Rows<const float>{rows.start, rows.stride}, static_cast<int>(logits.cols()), options,
         data_of<double>(uniform));
}

const Provide provided(sample_tokens_kernel, draw);

}  // namespace
}  // namespace nemocube::cuda
