#include "ops/attention/attention_mma.cuh"

// Backward: the rows of a block are queries (dq) or keys (dk, dv), and two tensors of them are in shared
// memory: Q and dO, or K and V. Tiles of the other rows come one after the other; while one is worked on, the
// next is on its way. Both S and dP have the block's rows, so that P and dS go from one product to the next
// in registers.

namespace nemocube::cuda::attention {
namespace {

template <int width>
struct QueryGradientTiles {
  static constexpr int rows = warps * 16 * fragments<width>, keys = width <= 192 ? 32 : 16;
  static constexpr int bytes = SharedTile<width>::bytes(2 * rows + 4 * keys);
};

template <int width, bool extras>
__global__ void __launch_bounds__(threads, 2) attention_dq_mma_kernel(const Backward<bf16_t> t) {
  using Tiles = QueryGradientTiles<width>;
  constexpr int rows = Tiles::rows, keys = Tiles::keys, m = fragments<width>;
  extern __shared__ __align__(128) char shared[];
  const auto tile_at = [&](int first_row) {
    return SharedTile<width>(shared + SharedTile<width>::bytes(first_row));
  };
  const SharedTile<width> q_tile = tile_at(0), d_o_tile = tile_at(rows);
  const auto k_tile = [&](int stage) { return tile_at(2 * rows + 2 * stage * keys); };
  const auto v_tile = [&](int stage) { return tile_at(2 * rows + (2 * stage + 1) * keys); };

  const Problem& p = t.problem;
  const Lane at(warp_index() * 16 * m);
  const QueryBlock<rows> block(p);
  if (block.index < 0) return;
  KeysSeen<extras> seen(p, block.span, block.queries);  // from first_key on
  std::int64_t first_key = block.span.k_begin;
  if constexpr (extras) first_key += seen.skip_to_window(p);
  const bool active = at.warp_row < block.queries.count;
  const auto copy_keys = [&](int stage, int ahead) {
    const int count = seen.by_some - ahead < keys ? seen.by_some - ahead : keys;
    const std::int64_t row = first_key + ahead, column = blockIdx.y * p.head_dim;
    copy_tile<keys, threads>(k_tile(stage), KeyRows(t.k, row, count, column), p.head_dim,
                             static_cast<int>(threadIdx.x));
    copy_tile<keys, threads>(v_tile(stage), KeyRows(t.v, row, count, column), p.head_dim,
                             static_cast<int>(threadIdx.x));
  };
  copy_tile<rows, threads>(q_tile, block.rows_in(t.q, p.head_dim), p.head_dim, static_cast<int>(threadIdx.x));
  copy_tile<rows, threads>(d_o_tile, block.rows_in(t.d_o, p.head_dim), p.head_dim,
                           static_cast<int>(threadIdx.x));
  if (seen.by_some > 0) copy_keys(0, 0);
  copy_async_commit();

  float lse[2 * m] = {}, delta[2 * m] = {};
#pragma unroll
  for (int i = 0; i < 2 * m; ++i)
    if (const int r = at.row(i); r < block.queries.count) {
      lse[i] = *block.rows_in(t.lse, 1)(r) * log2_e;
      delta[i] = *block.rows_in(t.delta, 1)(r);
    }

  RowScores rows_of_thread[extras ? 2 * m : 1];
  if constexpr (extras)
#pragma unroll
    for (int i = 0; i < 2 * m; ++i)
      rows_of_thread[i] = RowScores(p, block.span, block.queries, static_cast<int>(blockIdx.y), at.row(i));
  FragmentC dq[m][width / 8];
  int stage = 0;
  for (; seen.by_some > 0; first_key += keys, seen.skip(keys), stage ^= 1) {
    copy_async_wait<0>();
    __syncthreads();  // the tile is there, and nobody reads the other stage any more
    if (seen.by_some > keys) copy_keys(stage ^ 1, keys);
    copy_async_commit();
    if (!active) continue;
    FragmentC s[m][keys / 8], ds[m][keys / 8];
    multiply(s, q_tile, k_tile(stage), at);
    if constexpr (extras)
      // P times what the gradient of softcap takes.
      change_scores(
          s, rows_of_thread, p, at, [&](int i) { return seen.distance_of(block.queries, anew(at.row(i))); },
          [&](float score, int i, float passed) { return exp2_of(score - lse[i]) * passed; });
    else
#pragma unroll
      for (int i = 0; i < 2 * m; ++i)
#pragma unroll
        for (int j = 0; j < keys / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& weight = element(s, i, j, e);
            weight = exp2_of(fmaf(weight, p.scale * log2_e, -lse[i]));
          }
    multiply(ds, d_o_tile, v_tile(stage), at);
#pragma unroll
    for (int i = 0; i < 2 * m; ++i)
#pragma unroll
      for (int j = 0; j < keys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& change = element(ds, i, j, e);
          change = element(s, i, j, e) * (change - delta[i]);
        }
    if (seen.some_hidden(p, block.queries, keys)) {
      hide(ds, seen, block.queries, 0, at);
      if (extras && p.window > 0) hide_before(ds, seen, block.queries, p.window, 0, at);
    }
    add_weighted<width>(dq, ds, k_tile(stage), at);
  }
  copy_async_wait<0>();
  __syncthreads();
  if (!active) return;

  float scale[2 * m];
#pragma unroll
  for (int i = 0; i < 2 * m; ++i) scale[i] = extras ? p.scale * rows_of_thread[i].query_scale : p.scale;
  const QueryBlock<rows> place(p);
  store<width>(
      dq, q_tile, t.dq, [&](const auto& to) { return place.rows_in(to, p.head_dim); }, scale, p.head_dim,
      t.add, at);
}

// dk and dv: two warps share their rows of keys. One forms S and P, and dv from P; the other forms dP, takes
// P from the first to get dS, and forms dk from that. Each has the registers for the sums of one result.

template <int width>
struct KeyGradientTiles {
  static constexpr int pairs = warps / 2, keys = pairs * 16 * fragments<width>;
  static constexpr int queries = width <= 128 ? 48 : width <= 192 ? 32 : 16;
  static constexpr int fragments_of_pair = fragments<width> * queries / 8;
  static constexpr int tile_bytes = SharedTile<width>::bytes(2 * keys + 4 * queries);
  static constexpr int weight_bytes =
      pairs * fragments_of_pair * warp_threads * static_cast<int>(sizeof(float4));
};

/// What dk and dv need of the queries of a tile.
template <int queries>
struct QueryValues {
  float lse[queries], delta[queries];
  int seen[queries];  // keys of the block, not above 0: none; 0 beyond the last query
};
/// And with `extras`. `distance`: from the first key of the block to the query.
template <int queries>
struct QueryExtras {
  RowScores scores[queries];
  int distance[queries];
};

/// Each block of keys is done by `parts` blocks, which deal the tiles of queries among them, so that there
/// are blocks enough and long ones do not last alone. With more than one, the sums of part i are in
/// `part_rows` rows of f32 behind those of the parts before it, and attention_sum_parts_kernel adds them up.
struct KeyGradients {
  Sums<bf16_t> dk, dv;
  bool add;
  int parts;
  std::int64_t part_rows;
};

/// The keys of a block. As in QueryBlock, kernels find theirs twice.
template <int keys>
struct KeyBlock {
  int part, kv_head, count = 0;
  std::int64_t index, first_key;  // index -1: there are none
  Span span;
  /// The first keys of a pair are seen by most queries: they come first.
  __device__ KeyBlock(const Problem& p, int parts)
      : part(static_cast<int>(blockIdx.x % static_cast<unsigned>(parts))),
        kv_head(
            static_cast<int>(blockIdx.x / static_cast<unsigned>(parts) % static_cast<unsigned>(p.kv_heads))) {
    index = find_tile(
        p, blockIdx.x / static_cast<unsigned>(parts) / static_cast<unsigned>(p.kv_heads),
        [&](const Span& s) { return (s.k_count() + keys - 1) / keys; }, span);
    first_key = index * keys;
    const std::int64_t left = span.k_count() - first_key;
    count = left < keys ? static_cast<int>(left) : keys;
  }
  /// Rows of results are behind those of the parts before this one.
  template <class T>
  __device__ KeyRows<T> rows_in(const Rows<T>& tensor, int head_dim, std::int64_t part_rows = 0) const {
    return {tensor, part * part_rows + span.k_begin + first_key, count, std::int64_t{kv_head} * head_dim};
  }
};

template <int width, bool extras>
__global__ void __launch_bounds__(threads, 2)
    attention_dkv_mma_kernel(const Backward<bf16_t> t, const KeyGradients to) {
  using Tiles = KeyGradientTiles<width>;
  constexpr int keys = Tiles::keys, columns = Tiles::queries, m = fragments<width>;
  extern __shared__ __align__(128) char shared[];
  const auto tile_at = [&](int first_row) {
    return SharedTile<width>(shared + SharedTile<width>::bytes(first_row));
  };
  const SharedTile<width> k_tile = tile_at(0), v_tile = tile_at(keys);
  const auto q_tile = [&](int stage) { return tile_at(2 * keys + 2 * stage * columns); };
  const auto d_o_tile = [&](int stage) { return tile_at(2 * keys + (2 * stage + 1) * columns); };
  const bool of_dv = warp_index() % 2 == 0;
  const int pair = warp_index() / 2;
  const Lane at(pair * 16 * m);
  auto* const weights = reinterpret_cast<float4*>(shared + Tiles::tile_bytes) +
                        pair * Tiles::fragments_of_pair * warp_threads + at.lane;  // of the thread
  auto* const values =
      reinterpret_cast<QueryValues<columns>*>(shared + Tiles::tile_bytes + Tiles::weight_bytes);  // [stages]
  auto* const value_extras = reinterpret_cast<QueryExtras<columns>*>(values + 2);                 // [stages]

  const Problem& p = t.problem;
  const KeyBlock<keys> block(p, to.parts);
  if (block.index < 0) return;
  const bool active = at.warp_row < block.count;
  copy_tile<keys, threads>(k_tile, block.rows_in(t.k, p.head_dim), p.head_dim, static_cast<int>(threadIdx.x));
  copy_tile<keys, threads>(v_tile, block.rows_in(t.v, p.head_dim), p.head_dim, static_cast<int>(threadIdx.x));

  // The first query that sees the first of the keys, and tiles from its own to the last: the part's are every
  // parts-th, from the last one on. Blocks that run at the same time then read the same tiles, which come
  // from L2.
  const std::int64_t diagonal = block.first_key - p.distance_of<extras>(block.span);
  const std::int64_t row_end =
      extras ? p.query_end(block.span, block.first_key + block.count) * p.group : p.columns_of(block.span);
  const std::int64_t first_tile = p.first_query<extras>(block.span, block.first_key) * p.group / columns,
                     tiles = (row_end + columns - 1) / columns - block.part;
  int left = tiles > first_tile ? static_cast<int>((tiles - first_tile + to.parts - 1) / to.parts) : 0;
  QueryTile queries(p, block.span, left > 0 ? (tiles - 1) * columns : 0, columns);
  if constexpr (extras) queries.cut(left > 0 ? row_end - (tiles - 1) * columns : 0, columns);
  const int step = to.parts * columns, step_queries = step / p.group, step_heads = step % p.group;

  float own_lse = 0, own_delta = 0;
  int own_seen = 0, own_distance = 0;
  RowScores own_scores;
  bool next_hidden = false, some_hidden;  // whether there are keys that a query of the tile does not see
  // From the first key of the block to the place of a query of the tile.
  const auto distance_of = [&](int r) {
    if constexpr (extras)
      return static_cast<int>(p.place_of<true>(queries.first_query + queries.query_of(r)) - diagonal);
    else
      return static_cast<int>(queries.first_query - diagonal) + queries.query_of(r);
  };
  const auto keys_seen = [&](int r) {
    if (!p.causal) return block.count;
    const int seen = distance_of(r) + 1;
    return seen < block.count ? seen : block.count;
  };
  // Begins the copies of the next tile. The warps of dk make them, while those of dv have exponentials to
  // form, and load what belongs to one of the queries.
  const int thread = pair * warp_threads + at.lane;
  const auto copy_queries = [&](int stage) {
    const auto rows_in = [&](const auto& tensor, int row_width) {
      return QueryRows(tensor, queries, block.span, block.kv_head, row_width);
    };
    own_seen = 0;
    if (!of_dv) {
      copy_tile<columns, threads / 2>(q_tile(stage), rows_in(t.q, p.head_dim), p.head_dim, thread);
      copy_tile<columns, threads / 2>(d_o_tile(stage), rows_in(t.d_o, p.head_dim), p.head_dim, thread);
    } else if (thread < queries.count) {
      own_lse = *rows_in(t.lse, 1)(thread) * log2_e;
      own_delta = *rows_in(t.delta, 1)(thread);
      own_seen = keys_seen(thread);
      if constexpr (extras) {
        own_distance = distance_of(thread);
        own_scores = RowScores(p, block.span, queries, block.kv_head, thread);
      }
    }
    next_hidden = queries.count < columns || keys_seen(0) < block.count;
    if constexpr (extras)
      next_hidden = next_hidden || (p.window > 0 && distance_of(queries.count - 1) >= p.window);
    queries.retreat(step_queries, step_heads);
    queries.count = columns;
  };
  const auto put_query_values = [&](int stage) {
    if (!of_dv || thread >= columns) return;
    values[stage].lse[thread] = own_lse;
    values[stage].delta[thread] = own_delta;
    values[stage].seen[thread] = own_seen;
    if constexpr (extras) {
      value_extras[stage].distance[thread] = own_distance;
      value_extras[stage].scores[thread] = own_scores;
    }
  };
  if (left > 0) {
    copy_queries(0);
    put_query_values(0);
  }
  copy_async_commit();

  FragmentC sums[m][width / 8];
  for (int stage = 0; left > 0; --left, stage ^= 1) {
    some_hidden = next_hidden;
    copy_async_wait<0>();
    __syncthreads();  // the tile is there, and nobody reads the other stage and the weights any more
    if (left > 1) copy_queries(stage ^ 1);
    copy_async_commit();
    FragmentC s[m][columns / 8];
    if (active) multiply(s, of_dv ? k_tile : v_tile, of_dv ? q_tile(stage) : d_o_tile(stage), at);
    const auto for_each_element = [&](auto&& fn) {
#pragma unroll
      for (int j = 0; j < columns / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
#pragma unroll
          for (int i = 0; i < 2 * m; ++i) fn(element(s, i, j, e), i, 8 * j + at.column + e);
    };
    const auto hidden = [&](int i, int c) {
      if (extras && p.window > 0 && at.row(i) <= value_extras[stage].distance[c] - p.window) return true;
      return at.row(i) >= values[stage].seen[c];
    };
    const auto hide = [&] {
      if (some_hidden)
        for_each_element([&](float& x, int i, int c) {
          if (hidden(i, c)) x = 0;
        });
    };
    if (active && of_dv) {
      if constexpr (extras) {
        // The other warp gets P times what the gradients of softcap and query_scale take.
        visit_capped(p, [&](auto capped) {
#pragma unroll
          for (int j = 0; j < columns / 8; ++j)
#pragma unroll
            for (int f = 0; f < m; ++f) {
              float w[4];
#pragma unroll
              for (int n = 0; n < 4; ++n) {
                const int i = 2 * f + n / 2, c = 8 * j + at.column + n % 2;
                const RowScores scores = value_extras[stage].scores[c];
                float& x = s[f][j].v[n];
                float passed;
                const float score = scores.score(
                    p, x, static_cast<float>(value_extras[stage].distance[c] - at.row(i)),
                    decltype(capped)::value, [](float y) { return tanh_of(y); }, passed);
                x = some_hidden && hidden(i, c) ? 0 : exp2_of(score - values[stage].lse[c]);
                w[n] = x * passed * scores.query_scale;
              }
              weights[(f * columns / 8 + j) * warp_threads] = make_float4(w[0], w[1], w[2], w[3]);
            }
        });
      } else {
        for_each_element(
            [&](float& x, int, int c) { x = exp2_of(fmaf(x, p.scale * log2_e, -values[stage].lse[c])); });
        hide();
#pragma unroll
        for (int f = 0; f < m; ++f)
#pragma unroll
          for (int j = 0; j < columns / 8; ++j) {
            const float(&v)[4] = s[f][j].v;
            weights[(f * columns / 8 + j) * warp_threads] = make_float4(v[0], v[1], v[2], v[3]);
          }
      }
    }
    __syncthreads();  // the weights are there
    if (active && !of_dv) {
      for_each_element([&](float& x, int, int c) { x -= values[stage].delta[c]; });
#pragma unroll
      for (int f = 0; f < m; ++f)
#pragma unroll
        for (int j = 0; j < columns / 8; ++j) {
          const float4 w = weights[(f * columns / 8 + j) * warp_threads];
          float(&v)[4] = s[f][j].v;
          v[0] *= w.x;
          v[1] *= w.y;
          v[2] *= w.z;
          v[3] *= w.w;
        }
      hide();
    }
    if (active) add_weighted<width>(sums, s, of_dv ? d_o_tile(stage) : q_tile(stage), at);
    put_query_values(stage ^ 1);
  }
  copy_async_wait<0>();
  __syncthreads();
  if (!active) return;

  const KeyBlock<keys> place(p, to.parts);
  const auto key_rows = [&](const auto& tensor) { return place.rows_in(tensor, p.head_dim, to.part_rows); };
  float factor[2 * m];
#pragma unroll
  for (float& x : factor) x = of_dv ? 1 : p.scale;
  if (of_dv)
    store<width>(sums, k_tile, to.dv, key_rows, factor, p.head_dim, to.add, at);
  else
    store<width>(sums, v_tile, to.dk, key_rows, factor, p.head_dim, to.add, at);
}

/// The parts of dk and dv, where they are wanted.
struct PartSums {
  Rows<float> dk, dv;
  std::int64_t part_rows;
  int parts;
};
constexpr int sum_rows = 16;

/// Adds the parts of dk (blockIdx.y = 0) or dv up, in their order, for a tile of keys.
__global__ void __launch_bounds__(threads)
    attention_sum_parts_kernel(const Backward<bf16_t> t, const PartSums from) {
  constexpr int N = 4;
  const Problem& p = t.problem;
  const bool of_dk = blockIdx.y == 0;
  const Rows<float> parts = of_dk ? from.dk : from.dv;
  if (!parts) return;
  Span span;
  const std::int64_t index = find_tile(
      p, blockIdx.x, [&](const Span& s) { return (s.k_count() + sum_rows - 1) / sum_rows; }, span);
  if (index < 0) return;
  const std::int64_t first = span.k_begin + index * sum_rows;
  const int rows = span.k_end - first < sum_rows ? static_cast<int>(span.k_end - first) : sum_rows;
  const int packs = p.kv_heads * p.head_dim / N;
  for (int i = static_cast<int>(threadIdx.x); i < rows * packs; i += threads) {
    const int row = i / packs, c = i % packs * N;
    float sum[N] = {};
    for (int part = 0; part < from.parts; ++part) {
      float v[N];
      Pack<float, N>::load(parts.row(part * from.part_rows + first + row) + c, N).read(v);
#pragma unroll
      for (int e = 0; e < N; ++e) sum[e] += v[e];
    }
    const auto add_to = [&](const Sums<bf16_t>& to) {
      if (to.exact)
        store_sums(to.exact.row(first + row) + c, sum, 1, N, true, t.add);
      else
        store_sums(to.rounded.row(first + row) + c, sum, 1, N, true, t.add);
    };
    if (of_dk)
      add_to(t.dk);
    else
      add_to(t.dv);
  }
}

/// A number that depends on the model alone: bits of dk and dv do not depend on what else is in a batch.
int parts_of(const Problem& p) { return p.kv_heads >= 8 ? 1 : 8 / p.kv_heads; }

template <int width, bool extras>
void launch_dkv(const Backward<bf16_t>& t, Device device) {
  using Tiles = KeyGradientTiles<width>;
  constexpr int value_bytes = static_cast<int>(sizeof(QueryValues<Tiles::queries>) +
                                               (extras ? sizeof(QueryExtras<Tiles::queries>) : 0));
  constexpr int bytes = Tiles::tile_bytes + Tiles::weight_bytes + 2 * value_bytes;
  static_assert(bytes <= 99 * 1024);
  const Problem& p = t.problem;
  const int parts = parts_of(p);
  const auto run = [&](const KeyGradients& to) {
    const std::int64_t blocks =
        std::int64_t{most_tiles(p.k_rows, p.pair_count, Tiles::keys)} * p.kv_heads * parts;
    launch_shared("attention dk dv", attention_dkv_mma_kernel<width, extras>, blocks_for(blocks, 1), threads,
                  bytes, t, to);
  };
  if (parts == 1) return run({t.dk, t.dv, t.add, 1, 0});
  const auto scratch = [&](const Sums<bf16_t>& wanted) {
    return wanted
               ? Tensor::empty({parts * p.k_rows, std::int64_t{p.kv_heads} * p.head_dim}, DType::f32, device)
               : Tensor();
  };
  const Tensor dk = scratch(t.dk), dv = scratch(t.dv);
  const PartSums sums{rows_of<float>(dk), rows_of<float>(dv), p.k_rows, parts};
  run({{{}, sums.dk}, {{}, sums.dv}, false, parts, p.k_rows});
  launch("attention dk dv sums", attention_sum_parts_kernel,
         dim3(most_tiles(p.k_rows, p.pair_count, sum_rows), 2), threads, t, sums);
}

}  // namespace

bool backward_by_mma(const Backward<bf16_t>& t, Device device) {
  return t.aligned && visit_kernel(t.problem, [&](auto width, auto extras) {
           using Tiles = QueryGradientTiles<width>;
           if (t.dq)
             launch_shared("attention dq", attention_dq_mma_kernel<width, extras>,
                           grid_of_queries(t.problem, Tiles::rows), threads, Tiles::bytes, t);
           if (t.dk || t.dv) launch_dkv<width, extras>(t, device);
         });
}

}  // namespace nemocube::cuda::attention
