#pragma once
#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "core/cuda/warp.cuh"
#include "ops/attention/attention_kernels.h"

/// Parts shared by the kernels of attention on CUDA.
///
/// The rows of a tile of queries are pairs of a query and one of the query heads of one kv head, query by
/// query and head by head: the heads of a group share every tile of K and V, in training as in decoding, and
/// the products that form dK and dV sum over the group by themselves.
namespace nemocube::cuda::attention {

constexpr float log2_e = 1.44269504088896340736F, ln_2 = 0.693147180559945309417F;
constexpr float infinity = std::numeric_limits<float>::infinity();

/// `x`, in a way that the compiler does not see: it forms what depends on it anew, in place of holding all of
/// it in registers from one tile to the next.
__device__ inline int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// A pair of ranges of rows (AttentionPair), as the table has it.
struct Span {
  std::int64_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0, distance = 0;
  __device__ std::int64_t q_count() const { return q_end - q_begin; }
  __device__ std::int64_t k_count() const { return k_end - k_begin; }
};

/// Sizes and table of a call.
struct Problem {
  const Span* pairs;
  int pair_count;
  int kv_heads, group;             ///< group: query heads of a kv head
  std::uint64_t group_reciprocal;  ///< 2^32 / group, rounded up
  int head_dim;
  bool causal;
  float scale;
  std::int64_t q_rows, k_rows;  ///< of the tensors
  // What only kernels with `extras` look at; 0 and null: none.
  bool far;  ///< queries need not stand at the last keys
  int window;
  int query_block;
  float softcap;  ///< times log2(e)
  float factor;   ///< of products, for scores in powers of two, or for S / c with softcap
  const float *slopes, *query_scale;

  explicit Problem(const AttentionInputs& in)
      : pairs(in.pairs.table() ? reinterpret_cast<const Span*>(data_of<std::int64_t>(in.pairs.table()))
                               : nullptr),
        pair_count(in.pairs.table() ? static_cast<int>(in.pairs.table().rows()) : 0),
        kv_heads(static_cast<int>(in.options.kv_heads)),
        group(static_cast<int>(in.options.heads / in.options.kv_heads)),
        group_reciprocal(((std::uint64_t{1} << 32) + static_cast<unsigned>(group) - 1) /
                         static_cast<unsigned>(group)),
        head_dim(static_cast<int>(in.options.head_dim)),
        causal(in.options.causal),
        scale(static_cast<float>(in.options.scale)),
        q_rows(in.q.rows()),
        k_rows(in.k.rows()),
        far(in.options.causal && !in.pairs.at_last_keys()),
        window(static_cast<int>(std::min<std::int64_t>(in.options.window, 1 << 30))),
        query_block(static_cast<int>(std::min<std::int64_t>(in.options.query_block, 1 << 30))),
        softcap(static_cast<float>(in.options.softcap) * log2_e),
        factor(in.options.softcap > 0 ? static_cast<float>(in.options.scale / in.options.softcap)
                                      : scale * log2_e),
        slopes(in.options.slopes ? data_of<float>(in.options.slopes) : nullptr),
        query_scale(in.options.query_scale ? data_of<float>(in.options.query_scale) : nullptr) {}

  /// Whether the kernels with `extras` have to run.
  bool has_extras() const {
    return far || window > 0 || query_block > 1 || softcap > 0 || slopes || query_scale;
  }

  __host__ __device__ std::int64_t columns_of(const Span& span) const {
    return (span.q_end - span.q_begin) * group;
  }
  /// From the first key of a pair to the first query.
  template <bool extras>
  __device__ static std::int64_t distance_of(const Span& span) {
    return extras ? span.distance : span.k_count() - span.q_count();
  }
  /// The query of a pair at whose place query `i` stands.
  template <bool extras>
  __device__ std::int64_t place_of(std::int64_t i) const {
    return extras && query_block > 1 ? i / query_block * query_block : i;
  }
  /// The first query of a pair that stands at the place of query `i` or behind; pre: i >= 0.
  template <bool extras>
  __device__ std::int64_t first_standing(std::int64_t i) const {
    return extras && query_block > 1 ? (i + query_block - 1) / query_block * query_block : i;
  }
  /// The first query of a pair that sees its key `k`.
  template <bool extras>
  __device__ std::int64_t first_query(const Span& span, std::int64_t k) const {
    const std::int64_t diagonal = k - distance_of<extras>(span);
    return causal && diagonal > 0 ? first_standing<extras>(diagonal) : 0;
  }
  /// Keys that query `i` of a pair sees.
  template <bool extras>
  __device__ std::int64_t keys_seen(const Span& span, std::int64_t i) const {
    if (!causal) return span.k_count();
    const std::int64_t seen = place_of<extras>(i) + 1 + distance_of<extras>(span);
    return seen < 0 ? 0 : seen < span.k_count() ? seen : span.k_count();
  }
  /// The first key that query `i` of a pair sees, in kernels with `extras`.
  __device__ std::int64_t first_key(const Span& span, std::int64_t i) const {
    if (window == 0) return 0;
    const std::int64_t first = place_of<true>(i) + 1 + span.distance - window;
    return first < 0 ? 0 : first < span.k_count() ? first : span.k_count();
  }
  /// One past the last query of a pair that sees some of the keys before key `k_end`, in kernels with
  /// `extras`.
  __device__ std::int64_t query_end(const Span& span, std::int64_t k_end) const {
    if (window == 0) return span.q_count();
    const std::int64_t place = k_end - 1 + window - span.distance,
                       end = place < 0 ? 0 : first_standing<true>(place);
    return end < span.q_count() ? end : span.q_count();
  }
};

/// Calls fn(std::bool_constant<extras>()): what kernels without options do not need takes them no register.
template <class Fn>
void visit_extras(const Problem& p, Fn&& fn) {
  if (p.has_extras()) return fn(std::true_type());
  fn(std::false_type());
}

/// Blocks of a grid that suffice for the tiles of all pairs, whatever the pairs are.
inline unsigned most_tiles(std::int64_t rows, int pairs, int tile) {
  return blocks_for((rows + std::int64_t{pairs} * (tile - 1)) / tile, 1);
}

/// Finds tile `index` of the tiles of all pairs, counted pair by pair; tiles_of(span) is their number in a
/// pair. Returns the tile's number in its pair, or -1 when there are fewer tiles. All threads of a warp take
/// part.
template <class TilesOf>
__device__ std::int64_t find_tile(const Problem& p, std::int64_t index, TilesOf&& tiles_of, Span& span) {
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  for (int first = 0; first < p.pair_count; first += warp_threads) {
    const Span own = first + lane < p.pair_count ? p.pairs[first + lane] : Span();
    const std::int64_t tiles = tiles_of(own);
    std::int64_t end = tiles;  // of this pair and those before it
#pragma unroll
    for (int distance = 1; distance < warp_threads; distance *= 2) {
      const std::int64_t before = __shfl_up_sync(whole_warp, end, distance);
      if (lane >= distance) end += before;
    }
    const unsigned holders = __ballot_sync(whole_warp, index < end);
    if (holders != 0) {
      const int holder = __ffs(static_cast<int>(holders)) - 1;
      span.q_begin = __shfl_sync(whole_warp, own.q_begin, holder);
      span.q_end = __shfl_sync(whole_warp, own.q_end, holder);
      span.k_begin = __shfl_sync(whole_warp, own.k_begin, holder);
      span.k_end = __shfl_sync(whole_warp, own.k_end, holder);
      span.distance = p.pairs[first + holder].distance;
      return index - __shfl_sync(whole_warp, end - tiles, holder);
    }
    index -= __shfl_sync(whole_warp, end, warp_threads - 1);
  }
  return -1;
}

/// Rows of a tile of keys: at(r) is row r of one head, or null beyond the last row.
template <class T>
struct KeyRows {
  T* start;
  std::int64_t stride;
  int count;
  __device__ KeyRows(const Rows<T>& rows, std::int64_t first, int count, std::int64_t column)
      : start(rows.row(first) + column), stride(rows.stride), count(count) {}
  __device__ T* operator()(int r) const { return r < count ? start + r * stride : nullptr; }
};

/// The place of a tile of queries: its first row is head `first_head` of the group and query `first_query` of
/// the pair.
struct QueryTile {
  std::int64_t first_query;
  int first_head = 0, group, count = 0;
  std::uint64_t group_reciprocal;
  /// Without rows, at the first head of a query.
  __device__ QueryTile(const Problem& p, std::int64_t first_query)
      : first_query(first_query), group(p.group), group_reciprocal(p.group_reciprocal) {}
  __device__ QueryTile(const Problem& p, const Span& span, std::int64_t first_row, int tile)
      : QueryTile(p, first_row / p.group) {
    first_head = static_cast<int>(first_row - first_query * p.group);
    cut(p.columns_of(span) - first_row, tile);
  }
  /// Up to `tile` rows of those that are left.
  __device__ void cut(std::int64_t left, int tile) { count = left < tile ? static_cast<int>(left) : tile; }
  /// Moves back by rows, of which there are `queries` times the group and `heads`.
  __device__ void retreat(int queries, int heads) {
    first_query -= queries;
    first_head -= heads;
    if (first_head >= 0) return;
    first_head += group;
    --first_query;
  }
  /// From first_query on.
  __device__ int query_of(int r) const { return whole_groups(first_head + r); }
  /// In the group, of a row of query query_of(r).
  __device__ int head_of(int r) const { return first_head + r - query_of(r) * group; }
  /// rows / group. The product is exact enough while group * (group + tile) < 2^32.
  __device__ int whole_groups(int rows) const {
    return static_cast<int>(static_cast<unsigned>(rows) * group_reciprocal >> 32);
  }
};

/// What a row of a tile of queries makes of its products with keys (`extras`).
struct RowScores {
  float query_scale = 0, slope = 0;  ///< slope: times log2(e); 0 beyond the last row
  __device__ RowScores() = default;
  __device__ RowScores(const Problem& p, const Span& span, const QueryTile& tile, int kv_head, int r) {
    if (r >= tile.count) return;
    query_scale = p.query_scale ? p.query_scale[span.q_begin + tile.first_query + tile.query_of(r)] : 1;
    slope = p.slopes ? p.slopes[kv_head * tile.group + tile.head_of(r)] * log2_e : 0;
  }
  /// The score of a product with a key `distance` before the query, in powers of two. tanh_of(x): with
  /// softcap, when `capped`. `passed`: 1 - tanh^2, or 1.
  template <class Tanh>
  __device__ float score(const Problem& p, float product, float distance, bool capped, Tanh&& tanh_of,
                         float& passed) const {
    float s = product * (p.factor * query_scale);
    passed = 1;
    if (capped) {
      const float y = tanh_of(s);
      passed = fmaf(-y, y, 1);
      s = y * p.softcap;
    }
    return fmaf(-slope, distance, s);
  }
};

/// Its rows in a tensor of all heads; `width` elements a head.
template <class T>
struct QueryRows {
  T* start;
  std::int64_t stride;
  int width;
  QueryTile tile;
  __device__ QueryRows(const Rows<T>& rows, const QueryTile& tile, const Span& span, int kv_head, int width)
      : start(rows.row(span.q_begin + tile.first_query) + std::int64_t{kv_head} * tile.group * width),
        stride(rows.stride),
        width(width),
        tile(tile) {}
  __device__ T* operator()(int r) const {
    if (r >= tile.count) return nullptr;
    const int query = tile.query_of(r), head = tile.first_head + r - query * tile.group;
    return start + query * stride + std::int64_t{head} * width;
  }
};

/// A result in T or in f32.
template <class T>
struct Sums {
  Rows<T> rounded;
  Rows<float> exact;  // where `rounded` is null
  __host__ __device__ explicit operator bool() const { return rounded || exact; }
};
template <class T>
Sums<T> sums_of(const Tensor& t) {
  if (t.defined() && t.dtype() == DType::f32) return {{}, rows_of<float>(t)};
  return {rows_of<T>(t), {}};
}

/// The first `count` of N neighbours at `at` become `factor` v, or that is added.
template <class T, int N>
__device__ void store_sums(T* at, const float (&v)[N], float factor, int count, bool aligned, bool add) {
  using Elements = Pack<T, N>;
  float sum[N] = {};
  if (add)
    (aligned ? Elements::template load<true>(at, count) : Elements::template load<false>(at, count))
        .read(sum);
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] = add ? sum[i] + v[i] * factor : v[i] * factor;
  if (aligned)
    Elements::of(sum).template store<true>(at, count);
  else
    Elements::of(sum).template store<false>(at, count);
}

template <class T>
struct Forward {
  Problem problem;
  Rows<T> q, k, v;
  Sums<T> o;
  Rows<float> lse;
  bool add;
  bool aligned;  ///< every head of every row starts at a multiple of 16 bytes
};

template <class T>
struct Backward {
  Problem problem;
  Rows<T> q, k, v, o, d_o;
  Rows<float> lse, delta;  // delta: [T, heads]
  Sums<T> dq, dk, dv;
  bool add, aligned;
};

// On tensor cores (attention_mma.cuh). They return false for sizes that the general kernels have to do.
// `device`: of the operands.
bool forward_by_mma(const Forward<__nv_bfloat16>& t);
bool backward_by_mma(const Backward<__nv_bfloat16>& t, Device device);

}  // namespace nemocube::cuda::attention
