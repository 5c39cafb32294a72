#include "ops/attention/attention_tiles.cuh"

// Attention for every dtype and head_dim, with multiply-adds in f32. A block of 16 x 8 threads has 64 rows:
// queries in forward and dq, keys in dk and dv. It walks over tiles of 64 rows of the other kind: the scores
// of two tiles are products over the head's channels, 32 at a time; weighted sums of rows add to 64 x `width`
// sums in registers. Heads of more than `width` channels take several passes, which form the scores again.
// All sums are formed in a fixed order.
namespace nemocube::cuda::attention {
namespace {

// A thread has four rows and twice four columns of the scores: a warp's four threads y and eight
// threads x then read different banks, whether they read four numbers of their rows or of their columns.
constexpr int tile = 64, rows_each = 4, columns_each = 8;
constexpr int threads_x = tile / columns_each, threads_y = tile / rows_each, threads = threads_x * threads_y;
// Channels of a product, and rows of a weighted sum, that are in shared memory at a time.
constexpr int depth = 32;

/// All kernels have these tiles. To have no bank conflicts, the columns of a row are permuted by groups of
/// four or eight.
template <int width>
struct Shared {
  union {
    struct {
      float left[depth][tile], right[depth][tile];  // a channel of all rows
    };
    float rows[depth][width];
  };
  float weights[tile][tile];  // [other row][row]
};

struct TileThread {
  int thread = anew(static_cast<int>(threadIdx.x)), x = thread % threads_x, y = thread / threads_x;
  int row = y * rows_each;
  /// Column j of the thread's eight: two groups of four.
  __device__ int column(int j) const { return j / 4 * (tile / 2) + x * 4 + j % 4; }
};

using Scores = float[rows_each][columns_each];

__device__ float4 four(const float* at) { return *reinterpret_cast<const float4*>(at); }
__device__ void put_four(float* at, float a, float b, float c, float d) {
  *reinterpret_cast<float4*>(at) = make_float4(a, b, c, d);
}

template <class T>
__device__ Pack<T, whole_pack<T>> load_pack(const T* at, int count, bool aligned) {
  using Elements = Pack<T, whole_pack<T>>;
  return aligned ? Elements::template load<true>(at, count) : Elements::template load<false>(at, count);
}

/// Where column r of channel d is in `left` and `right`.
template <class T>
__device__ int column_of(int d, int r) {
  return r ^ (8 * (d / whole_pack<T> % 4));
}

/// to[d][column_of(d, r)] = channel first + d of row r; zeros beyond the last row and channel.
template <class T, class RowOf>
__device__ void load_channels(float (&to)[depth][tile], RowOf&& row_of, int first, int channels,
                              bool aligned) {
  constexpr int N = whole_pack<T>;
#pragma unroll 2
  for (int i = TileThread().thread; i < tile * depth / N; i += threads) {
    // A warp reads four packs of eight rows.
    const int warp = i / warp_threads, lane = i % warp_threads;
    const int r = lane / 4 + warp % (tile / 8) * 8, d = (lane % 4 + warp / (tile / 8) * 4) * N;
    float v[N] = {};
    if (const T* const row = row_of(r); row && first + d < channels)
      load_pack<T>(row + first + d, channels - first - d, aligned).read(v);
#pragma unroll
    for (int j = 0; j < N; ++j) to[d + j][column_of<T>(d, r)] = v[j];
  }
}

/// s[i][j] = sum over channels of left row `row` + i times right row column(j).
template <class T, int width, class Left, class Right>
__device__ void multiply(Scores& s, Shared<width>& shared, Left&& left, Right&& right, int channels,
                         bool aligned) {
  const TileThread place;
#pragma unroll
  for (int i = 0; i < rows_each; ++i)
#pragma unroll
    for (int j = 0; j < columns_each; ++j) s[i][j] = 0;
  for (int first = 0; first < channels; first += depth) {
    __syncthreads();
    load_channels<T>(shared.left, left, first, channels, aligned);
    load_channels<T>(shared.right, right, first, channels, aligned);
    __syncthreads();
    const int steps = channels - first < depth ? channels - first : depth;
#pragma unroll 2
    for (int d = 0; d < steps; ++d) {
      const float4 a = four(&shared.left[d][column_of<T>(d, place.row)]);
      const float4 b = four(&shared.right[d][column_of<T>(d, place.column(0))]);
      const float4 c = four(&shared.right[d][column_of<T>(d, place.column(4))]);
      const float as[4] = {a.x, a.y, a.z, a.w}, bs[8] = {b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
#pragma unroll
      for (int i = 0; i < rows_each; ++i)
#pragma unroll
        for (int j = 0; j < columns_each; ++j) s[i][j] = fmaf(as[i], bs[j], s[i][j]);
    }
  }
}

/// Where the weights of four rows 4 y are for the other row n.
template <int width>
__device__ float* weights_of(Shared<width>& shared, int n, int y) {
  return &shared.weights[n][(y ^ (n / 4 % 8)) * 4];
}

/// weights[column(j)][row + i] = w[i][j]. Nobody reads weights any more.
template <int width>
__device__ void put_weights(Shared<width>& shared, const Scores& w) {
  const TileThread place;
#pragma unroll
  for (int j = 0; j < columns_each; ++j)
    put_four(weights_of(shared, place.column(j), place.y), w[0][j], w[1][j], w[2][j], w[3][j]);
}

/// Sums of a thread: rows `row` + i, channels 32 c + 4 x + j.
template <int width>
struct Accumulators {
  static constexpr int groups = width / (4 * threads_x);
  float of[rows_each][groups][4];
  __device__ void scale(const float (&factor)[rows_each]) {
#pragma unroll
    for (int i = 0; i < rows_each; ++i)
#pragma unroll
      for (int c = 0; c < groups; ++c)
#pragma unroll
        for (int j = 0; j < 4; ++j) of[i][c][j] *= factor[i];
  }
};

/// Rows [first_row, first_row + depth), channels [first, first + width); zeros beyond the last ones.
template <class T, int width, class RowOf>
__device__ void load_rows(float (&to)[depth][width], RowOf&& row_of, int first_row, int first, int channels,
                          bool aligned) {
  constexpr int N = whole_pack<T>, packs = width / N;
#pragma unroll 2
  for (int i = TileThread().thread; i < depth * packs; i += threads) {
    const int r = i / packs, d = i % packs * N;
    float v[N] = {};
    if (const T* const row = row_of(first_row + r); row && first + d < channels)
      load_pack<T>(row + first + d, channels - first - d, aligned).read(v);
    if constexpr (N == 4) {
      put_four(&to[r][d], v[0], v[1], v[2], v[3]);
    } else {
      // Half of the threads begin with the upper four: eight neighbours then write to different banks.
      const bool upper = i / 4 % 2 == 1;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool high = upper != (half == 1);
        put_four(&to[r][d + (high ? 4 : 0)], high ? v[4] : v[0], high ? v[5] : v[1], high ? v[6] : v[2],
                 high ? v[7] : v[3]);
      }
    }
  }
}

/// sums += weights rows, for the channels from `first` on and `count` other rows. The weights have been put.
template <class T, int width, class RowOf>
__device__ void accumulate(Accumulators<width>& sums, Shared<width>& shared, RowOf&& row_of, int count,
                           int first, int channels, bool aligned) {
  const TileThread place;
  for (int first_row = 0; first_row < count; first_row += depth) {
    __syncthreads();
    load_rows<T>(shared.rows, row_of, first_row, first, channels, aligned);
    __syncthreads();
    const int rows = count - first_row < depth ? count - first_row : depth;
#pragma unroll 2
    for (int n = 0; n < rows; ++n) {
      const float4 w = four(weights_of(shared, first_row + n, place.y));
      const float ws[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int c = 0; c < Accumulators<width>::groups; ++c) {
        const float4 v = four(&shared.rows[n][c * 4 * threads_x + place.x * 4]);
        const float vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < rows_each; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sums.of[i][c][j] = fmaf(ws[i], vs[j], sums.of[i][c][j]);
      }
    }
  }
}

/// Stores the sums times a factor for each row, or adds that. row_of(r): of the result.
template <int width, class RowOf>
__device__ void store(const Accumulators<width>& sums, RowOf&& row_of, const float (&factor)[rows_each],
                      int first, int channels, bool aligned, bool add) {
  const TileThread place;
#pragma unroll
  for (int i = 0; i < rows_each; ++i) {
    const auto row = row_of(place.row + i);
    if (!row) continue;
#pragma unroll
    for (int c = 0; c < Accumulators<width>::groups; ++c)
      if (const int d = first + c * 4 * threads_x + place.x * 4; d < channels)
        store_sums(row + d, sums.of[i][c], factor[i], channels - d, aligned, add);
  }
}

/// Turns scores of keys from k0 on into weights relative to the largest score of a row so far, and returns in
/// `factor` what the sums of earlier keys are multiplied by. `seen`: keys that a row sees.
__device__ void softmax(Scores& s, float (&most)[rows_each], float (&total)[rows_each],
                        float (&factor)[rows_each], const std::int64_t (&seen)[rows_each], std::int64_t k0,
                        float scale) {
  const TileThread place;
#pragma unroll
  for (int i = 0; i < rows_each; ++i) {
    float largest = most[i];
#pragma unroll
    for (int j = 0; j < columns_each; ++j) {
      s[i][j] = k0 + place.column(j) < seen[i] ? s[i][j] * scale : -infinity;
      largest = fmaxf(largest, s[i][j]);
    }
    largest = warp_max<threads_x>(largest);
    // A row that has seen no key yet has -inf everywhere; 0 stands in, to avoid inf - inf.
    const float shift = largest == -infinity ? 0 : largest;
    factor[i] = exp2f(most[i] - shift);
    most[i] = largest;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < columns_each; ++j) sum += s[i][j] = exp2f(s[i][j] - shift);
    total[i] = total[i] * factor[i] + warp_sum<threads_x>(sum);
  }
}

template <class T, int width>
__global__ void __launch_bounds__(threads, 1) attention_forward_kernel(const Forward<T> t) {
  __shared__ __align__(16) Shared<width> shared;
  const Problem& p = t.problem;
  const TileThread place;
  Span span;
  // The last tiles of a pair see most keys: they come first.
  const std::int64_t index = find_tile(
      p, gridDim.x - 1 - blockIdx.x, [&](const Span& s) { return (p.columns_of(s) + tile - 1) / tile; },
      span);
  if (index < 0) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t column = std::int64_t{kv_head} * p.head_dim;
  const QueryTile queries(p, span, index * tile, tile);
  const QueryRows<T> q(t.q, queries, span, kv_head, p.head_dim);
  std::int64_t seen[rows_each];
#pragma unroll
  for (int i = 0; i < rows_each; ++i)
    seen[i] = p.keys_seen(span, queries.first_query + queries.query_of(place.row + i));
  const std::int64_t key_end = p.keys_seen(span, queries.first_query + queries.query_of(queries.count - 1));
  const QueryRows<float> lse_rows(t.lse, queries, span, kv_head, 1);

  for (int first = 0; first < p.head_dim; first += width) {
    Accumulators<width> sums = {};
    float most[rows_each], total[rows_each], factor[rows_each];
    // A result over other keys is the sum over one key with the score lse and the value o.
#pragma unroll
    for (int i = 0; i < rows_each; ++i) {
      const float* const lse = t.add ? lse_rows(place.row + i) : nullptr;
      most[i] = lse ? *lse * log2_e : -infinity;
      total[i] = most[i] == -infinity ? 0 : 1;
    }
    const auto with_result = [&](auto&& fn) {
      if (t.o.exact)
        fn(QueryRows<float>(t.o.exact, queries, span, kv_head, p.head_dim));
      else
        fn(QueryRows<T>(t.o.rounded, queries, span, kv_head, p.head_dim));
    };
    if (t.add)
      with_result([&](const auto& rows) {
#pragma unroll
        for (int i = 0; i < rows_each; ++i)
          if (const auto* const row = rows(place.row + i))
#pragma unroll
            for (int c = 0; c < Accumulators<width>::groups; ++c)
#pragma unroll
              for (int j = 0; j < 4; ++j)
                if (const int d = first + c * 4 * threads_x + place.x * 4 + j; d < p.head_dim)
                  sums.of[i][c][j] = to_float(row[d]);
      });

    for (std::int64_t k0 = 0; k0 < key_end; k0 += tile) {
      const int count = key_end - k0 < tile ? static_cast<int>(key_end - k0) : tile;
      const KeyRows<T> k(t.k, span.k_begin + k0, count, column), v(t.v, span.k_begin + k0, count, column);
      Scores s;
      multiply<T>(s, shared, q, k, p.head_dim, t.aligned);
      softmax(s, most, total, factor, seen, k0, p.scale * log2_e);
      put_weights(shared, s);
      sums.scale(factor);
      accumulate<T>(sums, shared, v, count, first, p.head_dim, t.aligned);
    }

#pragma unroll
    for (int i = 0; i < rows_each; ++i) factor[i] = total[i] == 0 ? 0 : 1 / total[i];
    with_result([&](const auto& rows) { store(sums, rows, factor, first, p.head_dim, t.aligned, false); });
    if (t.add) __syncthreads();  // all threads of a row have read its old score
    if (place.x == 0 && first + width >= p.head_dim)
#pragma unroll
      for (int i = 0; i < rows_each; ++i)
        if (float* const lse = lse_rows(place.row + i)) *lse = ln_2 * (most[i] + log2f(total[i]));
  }
}

/// delta of the queries of all pairs. A block has tiles of 64 rows as forward does; 16 threads have a row at
/// a time.
template <class T>
__global__ void __launch_bounds__(threads) attention_delta_kernel(const Backward<T> t) {
  const Problem& p = t.problem;
  Span span;
  const std::int64_t index = find_tile(
      p, blockIdx.x, [&](const Span& s) { return (p.columns_of(s) + tile - 1) / tile; }, span);
  if (index < 0) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const QueryTile queries(p, span, index * tile, tile);
  const QueryRows<T> o(t.o, queries, span, kv_head, p.head_dim),
      d_o(t.d_o, queries, span, kv_head, p.head_dim);
  const QueryRows<float> delta(t.delta, queries, span, kv_head, 1);
  constexpr int lanes = 16, N = whole_pack<T>;
#pragma unroll
  for (int first = 0; first < tile; first += threads / lanes) {
    const int r = first + static_cast<int>(threadIdx.x) / lanes, lane = static_cast<int>(threadIdx.x) % lanes;
    float sum = 0;
    if (r < queries.count)
      for (int d = lane * N; d < p.head_dim; d += lanes * N) {
        float a[N], b[N];
        load_pack<T>(o(r) + d, p.head_dim - d, t.aligned).read(a);
        load_pack<T>(d_o(r) + d, p.head_dim - d, t.aligned).read(b);
#pragma unroll
        for (int j = 0; j < N; ++j) sum = fmaf(a[j], b[j], sum);
      }
    sum = warp_sum<lanes>(sum);
    if (r < queries.count && lane == 0) *delta(r) = sum;
  }
}

template <class T, int width>
__global__ void __launch_bounds__(threads, 1) attention_dq_kernel(const Backward<T> t) {
  __shared__ __align__(16) Shared<width> shared;
  const Problem& p = t.problem;
  const TileThread place;
  Span span;
  const std::int64_t index = find_tile(
      p, gridDim.x - 1 - blockIdx.x, [&](const Span& s) { return (p.columns_of(s) + tile - 1) / tile; },
      span);
  if (index < 0) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t column = std::int64_t{kv_head} * p.head_dim;
  const QueryTile queries(p, span, index * tile, tile);
  const QueryRows<T> q(t.q, queries, span, kv_head, p.head_dim),
      d_o(t.d_o, queries, span, kv_head, p.head_dim);
  const QueryRows<float> lse_rows(t.lse, queries, span, kv_head, 1);
  const QueryRows<float> delta_rows(t.delta, queries, span, kv_head, 1);
  std::int64_t seen[rows_each];
  float lse[rows_each], delta[rows_each], factor[rows_each];
#pragma unroll
  for (int i = 0; i < rows_each; ++i) {
    const int r = place.row + i;
    seen[i] = r < queries.count ? p.keys_seen(span, queries.first_query + queries.query_of(r)) : 0;
    lse[i] = r < queries.count ? *lse_rows(r) * log2_e : 0;
    delta[i] = r < queries.count ? *delta_rows(r) : 0;
    factor[i] = p.scale;
  }
  const std::int64_t key_end = p.keys_seen(span, queries.first_query + queries.query_of(queries.count - 1));

  for (int first = 0; first < p.head_dim; first += width) {
    Accumulators<width> sums = {};
    for (std::int64_t k0 = 0; k0 < key_end; k0 += tile) {
      const int count = key_end - k0 < tile ? static_cast<int>(key_end - k0) : tile;
      const KeyRows<T> k(t.k, span.k_begin + k0, count, column), v(t.v, span.k_begin + k0, count, column);
      Scores s, ds;
      multiply<T>(s, shared, q, k, p.head_dim, t.aligned);
      multiply<T>(ds, shared, d_o, v, p.head_dim, t.aligned);
#pragma unroll
      for (int i = 0; i < rows_each; ++i)
#pragma unroll
        for (int j = 0; j < columns_each; ++j)
          ds[i][j] = k0 + place.column(j) < seen[i]
                         ? exp2f(s[i][j] * (p.scale * log2_e) - lse[i]) * (ds[i][j] - delta[i])
                         : 0;
      put_weights(shared, ds);
      accumulate<T>(sums, shared, k, count, first, p.head_dim, t.aligned);
    }
    if (t.dq.exact)
      store(sums, QueryRows<float>(t.dq.exact, queries, span, kv_head, p.head_dim), factor, first, p.head_dim,
            t.aligned, t.add);
    else
      store(sums, QueryRows<T>(t.dq.rounded, queries, span, kv_head, p.head_dim), factor, first, p.head_dim,
            t.aligned, t.add);
  }
}

template <class T, int width>
__global__ void __launch_bounds__(threads, 1) attention_dkv_kernel(const Backward<T> t) {
  __shared__ __align__(16) Shared<width> shared;
  const Problem& p = t.problem;
  const TileThread place;
  Span span;
  const std::int64_t index = find_tile(
      p, blockIdx.x, [&](const Span& s) { return (s.k_end - s.k_begin + tile - 1) / tile; }, span);
  if (index < 0) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t column = std::int64_t{kv_head} * p.head_dim, k0 = index * tile;
  const int count = span.k_count() - k0 < tile ? static_cast<int>(span.k_count() - k0) : tile;
  const KeyRows<T> k(t.k, span.k_begin + k0, count, column), v(t.v, span.k_begin + k0, count, column);
  // The first query that sees the tile's first key.
  const std::int64_t diagonal = k0 - (span.k_count() - span.q_count());
  const std::int64_t first_row = p.causal && diagonal > 0 ? diagonal * p.group : 0;

  for (int first = 0; first < p.head_dim; first += width) {
    Accumulators<width> dk = {}, dv = {};
    for (std::int64_t row = first_row; row < p.columns_of(span); row += tile) {
      const QueryTile queries(p, span, row, tile);
      const QueryRows<T> q(t.q, queries, span, kv_head, p.head_dim),
          d_o(t.d_o, queries, span, kv_head, p.head_dim);
      const QueryRows<float> lse_rows(t.lse, queries, span, kv_head, 1);
      const QueryRows<float> delta_rows(t.delta, queries, span, kv_head, 1);
      {
        Scores s;  // [key][query]
        multiply<T>(s, shared, k, q, p.head_dim, t.aligned);
#pragma unroll
        for (int j = 0; j < columns_each; ++j) {
          const int r = place.column(j);
          const bool there = r < queries.count;
          const std::int64_t seen = there ? p.keys_seen(span, queries.first_query + queries.query_of(r)) : 0;
          const float lse = there ? *lse_rows(r) * log2_e : 0;
#pragma unroll
          for (int i = 0; i < rows_each; ++i)
            s[i][j] = k0 + place.row + i < seen ? exp2f(s[i][j] * (p.scale * log2_e) - lse) : 0;
        }
        put_weights(shared, s);
        accumulate<T>(dv, shared, d_o, queries.count, first, p.head_dim, t.aligned);
      }
      // The thread's own weights are still where it has put them: registers do not hold them and dP.
      Scores ds;
      multiply<T>(ds, shared, v, d_o, p.head_dim, t.aligned);
#pragma unroll
      for (int j = 0; j < columns_each; ++j) {
        const int r = place.column(j);
        const float delta = r < queries.count ? *delta_rows(r) : 0;
        const float4 four_weights = four(weights_of(shared, r, place.y));
        const float weights[4] = {four_weights.x, four_weights.y, four_weights.z, four_weights.w};
#pragma unroll
        for (int i = 0; i < rows_each; ++i)
          ds[i][j] = weights[i] == 0 ? 0 : weights[i] * (ds[i][j] - delta) * p.scale;
      }
      put_weights(shared, ds);
      accumulate<T>(dk, shared, q, queries.count, first, p.head_dim, t.aligned);
    }
    const float factor[rows_each] = {1, 1, 1, 1};
    const auto store_keys = [&](const Sums<T>& to, const Accumulators<width>& sums) {
      if (to.exact)
        store(sums, KeyRows<float>(to.exact, span.k_begin + k0, count, column), factor, first, p.head_dim,
              t.aligned, t.add);
      else if (to.rounded)
        store(sums, KeyRows<T>(to.rounded, span.k_begin + k0, count, column), factor, first, p.head_dim,
              t.aligned, t.add);
    };
    store_keys(t.dk, dk);
    store_keys(t.dv, dv);
  }
}

template <class T, class... Tensors>
bool all_aligned(const AttentionInputs& in, const Tensors&... tensors) {
  return rows_aligned(in.q, in.k, in.v, tensors...) && in.options.head_dim % whole_pack<T> == 0;
}

/// Calls fn(std::integral_constant<int, width>()) for the sums that a block has in registers.
template <class Fn>
void visit_width(const Problem& p, Fn&& fn) {
  if (p.head_dim <= 64) return fn(std::integral_constant<int, 64>());
  fn(std::integral_constant<int, 128>());
}

dim3 grid_of(const Problem& p, std::int64_t rows) {
  return {most_tiles(rows, p.pair_count, tile), static_cast<unsigned>(p.kv_heads)};
}

void forward(const AttentionResult& out, const AttentionInputs& in, Into how) {
  visit_storage("attention", in.q.dtype(), [&]<class T>(TypeTag<T>) {
    const Problem p(in);
    if (p.pair_count == 0 || p.q_rows == 0) return;
    const Forward<T> t{.problem = p,
                       .q = rows_of<T>(in.q),
                       .k = rows_of<T>(in.k),
                       .v = rows_of<T>(in.v),
                       .o = sums_of<T>(out.o),
                       .lse = rows_of<float>(out.lse),
                       .add = how == Into::add,
                       .aligned = all_aligned<T>(in, out.o)};
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      if (forward_by_mma(t)) return;
    visit_width(p, [&](auto width) {
      launch("attention forward", attention_forward_kernel<T, width>, grid_of(p, p.q_rows * p.group), threads,
             t);
    });
  });
}

void backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& result,
              const AttentionInputs& in, Into how) {
  const Tensor delta = Tensor::empty(result.lse.shape(), DType::f32, in.q.device());
  visit_storage("attention", in.q.dtype(), [&]<class T>(TypeTag<T>) {
    const Problem p(in);
    if (p.pair_count == 0) return;
    const Backward<T> t{.problem = p,
                        .q = rows_of<T>(in.q),
                        .k = rows_of<T>(in.k),
                        .v = rows_of<T>(in.v),
                        .o = rows_of<T>(result.o),
                        .d_o = rows_of<T>(d_o),
                        .lse = rows_of<float>(result.lse),
                        .delta = rows_of<float>(delta),
                        .dq = p.q_rows > 0 ? sums_of<T>(out.dq) : Sums<T>(),
                        .dk = p.k_rows > 0 ? sums_of<T>(out.dk) : Sums<T>(),
                        .dv = p.k_rows > 0 ? sums_of<T>(out.dv) : Sums<T>(),
                        .add = how == Into::add,
                        .aligned = all_aligned<T>(in, result.o, d_o, out.dq, out.dk, out.dv)};
    const dim3 queries = grid_of(p, p.q_rows * p.group), keys = grid_of(p, p.k_rows);
    if (!t.dq && !t.dk && !t.dv) return;
    if (p.q_rows > 0) launch("attention delta", attention_delta_kernel<T>, queries, threads, t);
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      if (backward_by_mma(t, in.q.device())) return;
    visit_width(p, [&](auto width) {
      if (t.dq) launch("attention dq", attention_dq_kernel<T, width>, queries, threads, t);
      if (t.dk || t.dv) launch("attention dk dv", attention_dkv_kernel<T, width>, keys, threads, t);
    });
  });
}

const Provide provided[] = {{attention_tiled_forward, forward}, {attention_tiled_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda::attention
