#pragma once
#include "core/cuda/mma.cuh"
#include "ops/attention/attention_tiles.cuh"

// Attention in bf16 on tensor cores, for head_dim 64 to 256, a multiple of 16. A block has four warps. Each
// has 32 rows, or 16 where registers do not hold the sums of more; the tiles of the other rows pass through
// shared memory. With 32 rows a fragment that comes from there serves two products: with 16, the loads take
// longer than the products. Softmax and sums are in f32; P and dS are rounded to bf16 as operands of the
// products that follow, as in FlashAttention-2. Tiles are sized so that a block needs at most 99 KiB of
// shared memory, and a multiprocessor of compute 9.0 holds two: one multiplies while the other waits at a
// barrier. Heads of other sizes than `width` are filled up with zeros.
namespace nemocube::cuda::attention {

using bf16_t = __nv_bfloat16;

constexpr int warps = 4, threads = warps * warp_threads;

/// Fragments of 16 rows that a warp has.
template <int width>
constexpr int fragments = width <= 128 ? 2 : 1;

/// Where a thread's elements of a warp's products are: rows row(i), columns column and column + 1 of each
/// eight.
struct Lane {
  int lane = static_cast<int>(threadIdx.x) % warp_threads, column = lane % 4 * 2;
  int warp_row;  // the first of the warp
  __device__ explicit Lane(int warp_row) : warp_row(warp_row) {}
  __device__ int row(int i) const { return warp_row + lane / 4 + 8 * i; }
};
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / warp_threads; }

/// Element e (0 or 1) of the thread's row i, in the j-th eight columns.
template <int m, int n>
__device__ float& element(FragmentC (&products)[m][n], int i, int j, int e) {
  return products[i / 2][j].v[i % 2 * 2 + e];
}

/// 2^x; 0 in place of results below 2^-126.
__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// copy_tile for any number of threads.
template <int rows, int count, int width, class RowOf>
__device__ void copy_packs(const SharedTile<width>& to, const RowOf& row_of, int channels, int thread) {
  constexpr int packs = SharedTile<width>::packs;
#pragma unroll
  for (int first = 0; first < rows * packs; first += count) {
    const int i = first + thread, row = i / packs, pack = i % packs;
    if (rows * packs % count != 0 && i >= rows * packs) break;
    const bf16_t* const from = pack * 8 < channels ? row_of(row) : nullptr;
    copy_async(to.pack_address(row, pack), from ? from + pack * 8 : from, from ? 16 : 0);
  }
}
/// Begins to copy `rows` rows of one head, by threads 0 to `count` - 1; zeros for the rows and channels that
/// there are not. Where a thread has the same channels of all its rows, it goes from one to the next by
/// additions.
template <int rows, int count, int width>
__device__ void copy_tile(const SharedTile<width>& to, const KeyRows<bf16_t>& from, int channels,
                          int thread) {
  constexpr int packs = SharedTile<width>::packs, step = count / packs;
  thread = anew(thread);
  if constexpr (count % packs != 0 || rows % step != 0) {
    copy_packs<rows, count>(to, from, channels, thread);
  } else {
    const int first = thread / packs, pack = thread % packs;
    const int left = pack * 8 < channels ? from.count - first : 0;
    const bf16_t* at = from.start + first * from.stride + pack * 8;
#pragma unroll
    for (int row = 0; row < rows; row += step, at += step * from.stride)
      copy_async(to.pack_address(first + row, pack), at, row < left ? 16 : 0);
  }
}
template <int rows, int count, int width>
__device__ void copy_tile(const SharedTile<width>& to, const QueryRows<bf16_t>& from, int channels,
                          int thread) {
  constexpr int packs = SharedTile<width>::packs, step = count / packs;
  thread = anew(thread);
  if constexpr (count % packs != 0 || rows % step != 0) {
    copy_packs<rows, count>(to, from, channels, thread);
  } else {
    const QueryTile& tile = from.tile;
    const int first = thread / packs, pack = thread % packs;
    const int left = pack * 8 < channels ? tile.count - first : 0;
    const int query = tile.query_of(first), step_queries = tile.whole_groups(step),
              step_heads = step - step_queries * tile.group;
    int head = tile.first_head + first - query * tile.group;
    const bf16_t* at = from.start + query * from.stride + head * from.width + pack * 8;
    const std::int64_t to_next = step_queries * from.stride + step_heads * from.width,
                       to_next_query = from.stride - tile.group * from.width;
#pragma unroll
    for (int row = 0; row < rows; row += step) {
      copy_async(to.pack_address(first + row, pack), at, row < left ? 16 : 0);
      at += to_next;
      head += step_heads;
      if (head >= tile.group) {
        head -= tile.group;
        at += to_next_query;
      }
    }
  }
}

/// products += x y', of the warp's rows of x and all rows of y.
template <int width, int m, int n>
__device__ void multiply(FragmentC (&products)[m][n], const SharedTile<width>& x, const SharedTile<width>& y,
                         const Lane& at) {
  const int lane = anew(at.lane);
  // More loads at a time would not fit into registers beside the sums of 128 channels.
#pragma unroll 4
  for (int c = 0; c < width; c += 16) {
    FragmentA a[m];
#pragma unroll
    for (int f = 0; f < m; ++f) a[f] = load_a(x, at.warp_row + 16 * f, c, lane);
#pragma unroll
    for (int j = 0; j < n; j += 2) {
      const FragmentB2 b = load_b2_transposed(y, 8 * j, c, lane);
#pragma unroll
      for (int f = 0; f < m; ++f) {
        mma(products[f][j], a[f], b.left);
        mma(products[f][j + 1], a[f], b.right);
      }
    }
  }
}

/// sums += weights y, with the weights rounded.
template <int width, int m, int n>
__device__ void add_weighted(FragmentC (&sums)[m][width / 8], const FragmentC (&weights)[m][n],
                             const SharedTile<width>& y, const Lane& at) {
  const int lane = anew(at.lane);
#pragma unroll
  for (int j = 0; j < n; j += 2) {
    FragmentA a[m];
#pragma unroll
    for (int f = 0; f < m; ++f) a[f] = fragment_a(weights[f][j], weights[f][j + 1]);
#pragma unroll
    for (int c = 0; c < width; c += 16) {
      const FragmentB2 b = load_b2(y, 8 * j, c, lane);
#pragma unroll
      for (int f = 0; f < m; ++f) {
        mma(sums[f][c / 8], a[f], b.left);
        mma(sums[f][c / 8 + 1], a[f], b.right);
      }
    }
  }
}

/// Stores the warp's rows times `factor`, or adds that. Rounded results go through the warp's rows of `tile`,
/// which nobody else uses, so that whole packs are written.
template <int width, int m, class RowOf>
__device__ void store_rounded(FragmentC (&sums)[m][width / 8], const SharedTile<width>& tile, RowOf&& row_of,
                              const float (&factor)[2 * m], int channels, const Lane& at) {
#pragma unroll
  for (int j = 0; j < width / 8; ++j)
#pragma unroll
    for (int i = 0; i < 2 * m; ++i)
      *reinterpret_cast<unsigned*>(tile.at(at.row(i), 8 * j + at.column)) =
          pack_bf16(element(sums, i, j, 0) * factor[i], element(sums, i, j, 1) * factor[i]);
  __syncwarp();
  constexpr int packs = SharedTile<width>::packs;
#pragma unroll
  for (int i = at.lane; i < 16 * m * packs; i += warp_threads) {
    const int row = at.warp_row + i / packs, c = i % packs * 8;
    if (bf16_t* const to = row_of(row); to && c < channels)
      __stcg(reinterpret_cast<uint4*>(to + c), *reinterpret_cast<const uint4*>(tile.at(row, c)));
  }
}
template <int width, int m, class RowOf>
__device__ void store_pairs(FragmentC (&sums)[m][width / 8], RowOf&& row_of, const float (&factor)[2 * m],
                            int channels, bool add, const Lane& at) {
#pragma unroll
  for (int i = 0; i < 2 * m; ++i) {
    const auto to = row_of(at.row(i));
    if (!to) continue;
#pragma unroll
    for (int j = 0; j < width / 8; ++j)
      if (const int c = 8 * j + at.column; c < channels) {
        const float v[2] = {element(sums, i, j, 0), element(sums, i, j, 1)};
        store_sums(to + c, v, factor[i], 2, true, add);
      }
  }
}
/// rows_in(rows) are the block's rows of a result.
template <int width, int m, class RowsIn>
__device__ void store(FragmentC (&sums)[m][width / 8], const SharedTile<width>& tile, const Sums<bf16_t>& to,
                      RowsIn&& rows_in, const float (&factor)[2 * m], int channels, bool add,
                      const Lane& at) {
  if (to.exact)
    store_pairs<width>(sums, rows_in(to.exact), factor, channels, add, at);
  else if (to.rounded && add)
    store_pairs<width>(sums, rows_in(to.rounded), factor, channels, true, at);
  else if (to.rounded)
    store_rounded<width>(sums, tile, rows_in(to.rounded), factor, channels, at);
}

/// The queries of a block of forward or dq. Kernels find theirs twice, at the beginning and for the results,
/// in place of holding it in registers.
template <int rows>
struct QueryBlock {
  Span span;
  std::int64_t index;  // -1: there are none
  QueryTile queries;
  /// The last tiles of a pair see most keys: they come first.
  __device__ explicit QueryBlock(const Problem& p)
      : index(find_tile(
            p, gridDim.x - 1 - blockIdx.x, [&](const Span& s) { return (p.columns_of(s) + rows - 1) / rows; },
            span)),
        queries(p, span, index * rows, rows) {}
  template <class T>
  __device__ QueryRows<T> rows_in(const Rows<T>& tensor, int width) const {
    return {tensor, queries, span, static_cast<int>(blockIdx.y), width};
  }
};

/// Keys that the rows of a tile of queries see, from some key on.
template <bool extras>
struct KeysSeen {
  bool causal;
  int query_block, in_block;  // with `extras`; in_block: of the first query
  int distance;               // from that key to the place of the first query
  int by_first, by_some;      // with `extras` by_some is of the keys that there are
  __device__ KeysSeen(const Problem& p, const Span& span, const QueryTile& queries)
      : causal(p.causal),
        query_block(extras ? p.query_block : 1),
        in_block(extras && p.query_block > 1 ? static_cast<int>(queries.first_query % p.query_block) : 0),
        distance(static_cast<int>(queries.first_query - in_block + Problem::distance_of<extras>(span))),
        by_first(static_cast<int>(causal ? distance + 1 : span.k_count())),
        by_some(by(queries, queries.count - 1)) {
    if constexpr (extras) by_some = min(by_some, static_cast<int>(span.k_count()));
  }
  __device__ void skip(int keys) {
    by_first -= keys;
    by_some -= keys;
    if constexpr (extras) distance -= keys;
  }
  /// Not above 0: none.
  __device__ int by(const QueryTile& queries, int row) const {
    return causal ? by_first + place_of(queries.query_of(row)) : by_first;
  }
  /// From the first key to the place of the row's query.
  __device__ int distance_of(const QueryTile& queries, int row) const {
    return distance + place_of(queries.query_of(row));
  }
  /// Of a query so many behind the first one, from the place of that.
  __device__ int place_of(int query) const {
    if constexpr (extras)
      if (query_block > 1) return (in_block + query) / query_block * query_block;
    return query;
  }
  /// Skips the keys before the windows of all rows, and returns how many they are.
  __device__ int skip_to_window(const Problem& p) {
    const int keys = p.window > 0 && by_first > p.window ? by_first - p.window : 0;
    skip(keys);
    return keys;
  }
  /// Whether some row does not see all of the next `keys` keys.
  __device__ bool some_hidden(const Problem& p, const QueryTile& queries, int keys) const {
    if constexpr (extras)
      if (by_some < keys || (p.window > 0 && by(queries, queries.count - 1) > p.window)) return true;
    return by_first < keys;
  }
};

/// Puts `instead` in place of what belongs to keys beyond the window of a row.
template <bool extras, int m, int n>
__device__ void hide_before(FragmentC (&products)[m][n], const KeysSeen<extras>& seen,
                            const QueryTile& queries, int window, float instead, const Lane& at) {
#pragma unroll
  for (int i = 0; i < 2 * m; ++i) {
    const int begin = seen.by(queries, anew(at.row(i))) - window - at.column;
#pragma unroll
    for (int j = 0; j < n; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (8 * j + e < begin) element(products, i, j, e) = instead;
  }
}

/// tanh x within 2^-21.
__device__ inline float tanh_of(float x) { return 1 - __fdividef(2, 1 + exp2_of(x * (2 * log2_e))); }

/// Calls fn(capped) with a constant: whether there is softcap. Loops over scores then have no branch.
template <class Fn>
__device__ void visit_capped(const Problem& p, Fn&& fn) {
  if (p.softcap > 0)
    fn(std::true_type());
  else
    fn(std::false_type());
}

/// Turns products into scores in powers of two (`extras`), and these into fn(score, i, passed), where
/// `passed` is 1 - tanh^2 or 1. distance_of(i): from the first key of the tile to row(i) of the thread.
template <int m, int n, class DistanceOf, class Fn>
__device__ void change_scores(FragmentC (&products)[m][n], const RowScores (&rows)[2 * m], const Problem& p,
                              const Lane& at, DistanceOf&& distance_of, Fn&& fn) {
  visit_capped(p, [&](auto capped) {
#pragma unroll
    for (int i = 0; i < 2 * m; ++i) {
      const float distance = static_cast<float>(distance_of(i) - at.column);
#pragma unroll
      for (int j = 0; j < n; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = element(products, i, j, e);
          float passed;
          const float score = rows[i].score(
              p, x, distance - static_cast<float>(8 * j + e), decltype(capped)::value,
              [](float s) { return tanh_of(s); }, passed);
          x = fn(score, i, passed);
        }
    }
  });
}

/// Puts `instead` in place of what belongs to keys that a row does not see.
template <bool extras, int m, int n>
__device__ void hide(FragmentC (&products)[m][n], const KeysSeen<extras>& seen, const QueryTile& queries,
                     float instead, const Lane& at) {
#pragma unroll
  for (int i = 0; i < 2 * m; ++i) {
    int end = seen.by(queries, anew(at.row(i))) - at.column;
    if constexpr (extras) end = min(end, seen.by_some - at.column);
#pragma unroll
    for (int j = 0; j < n; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (8 * j + e >= end) element(products, i, j, e) = instead;
  }
}

/// Calls fn(std::integral_constant<int, width>(), std::bool_constant<extras>()) for the least width that
/// holds a head. False: none does, or heads are so small that the general kernels are no slower.
template <class Fn>
bool visit_kernel(const Problem& p, Fn&& fn) {
  if (p.head_dim < 64 || p.head_dim > 256 || p.head_dim % 16 != 0) return false;
  visit_extras(p, [&](auto extras) {
    if (p.head_dim <= 64)
      fn(std::integral_constant<int, 64>(), extras);
    else if (p.head_dim <= 96)
      fn(std::integral_constant<int, 96>(), extras);
    else if (p.head_dim <= 128)
      fn(std::integral_constant<int, 128>(), extras);
    else if (p.head_dim <= 192)
      fn(std::integral_constant<int, 192>(), extras);
    else
      fn(std::integral_constant<int, 256>(), extras);
  });
  return true;
}

inline dim3 grid_of_queries(const Problem& p, int tile) {
  return {most_tiles(p.q_rows * p.group, p.pair_count, tile), static_cast<unsigned>(p.kv_heads)};
}

}  // namespace nemocube::cuda::attention
