#include "ops/attention/attention_products.cuh"

// Attention for every dtype and head_dim, with multiply-adds in f32. A block has 64 rows: queries in forward
// and dq, keys in dk and dv. It walks over tiles of 64 rows of the other kind (attention_products.cuh). Heads
// of more than `width` channels take several passes, which form the scores again. All sums are formed in a
// fixed order.
namespace nemocube::cuda::attention {
namespace {

/// A row of a thread under options that change scores or their number.
struct Row {
  RowScores scores;
  std::int64_t position, first_key;  // counted from the first key of the pair
  __device__ Row(const Problem& p, const Span& span, const QueryTile& tile, int kv_head, int r)
      : scores(p, span, tile, kv_head, r) {
    const std::int64_t query = tile.first_query + tile.query_of(r);
    position = p.place_of<true>(query) + span.distance;
    first_key = p.first_key(span, query);
  }
  /// Of local key j.
  __device__ float score(const Problem& p, float product, std::int64_t j, float& passed) const {
    return scores.score(
        p, product, static_cast<float>(position - j), p.softcap > 0, [](float x) { return tanhf(x); },
        passed);
  }
};

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

template <class T, int width, bool extras>
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
    seen[i] = p.keys_seen<extras>(span, queries.first_query + queries.query_of(place.row + i));
  const std::int64_t key_begin = extras ? p.first_key(span, queries.first_query) : 0,
                     key_end =
                         p.keys_seen<extras>(span, queries.first_query + queries.query_of(queries.count - 1));
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

    for (std::int64_t k0 = key_begin; k0 < key_end; k0 += tile) {
      const int count = key_end - k0 < tile ? static_cast<int>(key_end - k0) : tile;
      const KeyRows<T> k(t.k, span.k_begin + k0, count, column), v(t.v, span.k_begin + k0, count, column);
      Scores s;
      multiply<T>(s, shared, q, k, p.head_dim, t.aligned);
      if constexpr (extras)
#pragma unroll
        for (int i = 0; i < rows_each; ++i) {
          const Row row(p, span, queries, kv_head, place.row + i);
#pragma unroll
          for (int j = 0; j < columns_each; ++j) {
            const std::int64_t key = k0 + place.column(j);
            float passed;
            s[i][j] = key < row.first_key ? -infinity : row.score(p, s[i][j], key, passed);
          }
        }
      softmax(s, most, total, factor, seen, k0, extras ? 1 : p.scale * log2_e);
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

template <class T, int width, bool extras>
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
    seen[i] = r < queries.count ? p.keys_seen<extras>(span, queries.first_query + queries.query_of(r)) : 0;
    lse[i] = r < queries.count ? *lse_rows(r) * log2_e : 0;
    delta[i] = r < queries.count ? *delta_rows(r) : 0;
    factor[i] = p.scale;
    if constexpr (extras) factor[i] *= RowScores(p, span, queries, kv_head, r).query_scale;
  }
  const std::int64_t key_begin = extras ? p.first_key(span, queries.first_query) : 0,
                     key_end =
                         p.keys_seen<extras>(span, queries.first_query + queries.query_of(queries.count - 1));

  for (int first = 0; first < p.head_dim; first += width) {
    Accumulators<width> sums = {};
    for (std::int64_t k0 = key_begin; k0 < key_end; k0 += tile) {
      const int count = key_end - k0 < tile ? static_cast<int>(key_end - k0) : tile;
      const KeyRows<T> k(t.k, span.k_begin + k0, count, column), v(t.v, span.k_begin + k0, count, column);
      Scores s, ds;
      multiply<T>(s, shared, q, k, p.head_dim, t.aligned);
      multiply<T>(ds, shared, d_o, v, p.head_dim, t.aligned);
      if constexpr (extras) {
#pragma unroll
        for (int i = 0; i < rows_each; ++i) {
          const Row row(p, span, queries, kv_head, place.row + i);
#pragma unroll
          for (int j = 0; j < columns_each; ++j) {
            const std::int64_t key = k0 + place.column(j);
            float passed;
            const float score = row.score(p, s[i][j], key, passed);
            ds[i][j] = key >= row.first_key && key < seen[i]
                           ? exp2f(score - lse[i]) * (ds[i][j] - delta[i]) * passed
                           : 0;
          }
        }
      } else {
#pragma unroll
        for (int i = 0; i < rows_each; ++i)
#pragma unroll
          for (int j = 0; j < columns_each; ++j)
            ds[i][j] = k0 + place.column(j) < seen[i]
                           ? exp2f(s[i][j] * (p.scale * log2_e) - lse[i]) * (ds[i][j] - delta[i])
                           : 0;
      }
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

template <class T, int width, bool extras>
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
  const std::int64_t first_row = p.first_query<extras>(span, k0) * p.group,
                     row_end = extras ? p.query_end(span, k0 + count) * p.group : p.columns_of(span);

  for (int first = 0; first < p.head_dim; first += width) {
    Accumulators<width> dk = {}, dv = {};
    for (std::int64_t row = first_row; row < row_end; row += tile) {
      QueryTile queries(p, span, row, tile);
      if constexpr (extras) queries.cut(row_end - row, tile);
      // What dS takes from softcap and query_scale; 1 without `extras`.
      float passed[extras ? rows_each : 1][extras ? columns_each : 1];
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
          const std::int64_t seen =
              there ? p.keys_seen<extras>(span, queries.first_query + queries.query_of(r)) : 0;
          const float lse = there ? *lse_rows(r) * log2_e : 0;
          if constexpr (extras) {
            const Row query(p, span, queries, kv_head, r);
#pragma unroll
            for (int i = 0; i < rows_each; ++i) {
              const std::int64_t key = k0 + place.row + i;
              const float score = query.score(p, s[i][j], key, passed[i][j]);
              s[i][j] = key >= query.first_key && key < seen ? exp2f(score - lse) : 0;
              passed[i][j] *= query.scores.query_scale;
            }
          } else {
#pragma unroll
            for (int i = 0; i < rows_each; ++i)
              s[i][j] = k0 + place.row + i < seen ? exp2f(s[i][j] * (p.scale * log2_e) - lse) : 0;
          }
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
        for (int i = 0; i < rows_each; ++i) {
          ds[i][j] = weights[i] == 0 ? 0 : weights[i] * (ds[i][j] - delta) * p.scale;
          if constexpr (extras) ds[i][j] *= passed[i][j];
        }
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

/// Calls fn(std::integral_constant<int, width>(), std::bool_constant<extras>()); width: of the sums that a
/// block has in registers.
template <class Fn>
void visit_kernel(const Problem& p, Fn&& fn) {
  visit_extras(p, [&](auto extras) {
    if (p.head_dim <= 64) return fn(std::integral_constant<int, 64>(), extras);
    fn(std::integral_constant<int, 128>(), extras);
  });
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
    visit_kernel(p, [&](auto width, auto extras) {
      launch("attention forward", attention_forward_kernel<T, width, extras>, grid_of(p, p.q_rows * p.group),
             threads, t);
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
    visit_kernel(p, [&](auto width, auto extras) {
      if (t.dq) launch("attention dq", attention_dq_kernel<T, width, extras>, queries, threads, t);
      if (t.dk || t.dv) launch("attention dk dv", attention_dkv_kernel<T, width, extras>, keys, threads, t);
    });
  });
}

const Provide provided[] = {{attention_tiled_forward, forward}, {attention_tiled_backward, backward}};

}  // namespace
}  // namespace nemocube::cuda::attention
