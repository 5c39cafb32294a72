#include "core/cuda/mma.cuh"
#include "ops/attention/attention_tiles.cuh"

// Attention in bf16 on tensor cores, for head_dim 64 to 256, a multiple of 16. Each warp of a block has 16 rows; their
// sums stay in its registers, and the tiles of the other rows pass through shared memory. Softmax and sums are in f32;
// P and dS are rounded to bf16 as operands of the products that follow, as in FlashAttention-2. Tiles are sized so that a
// block needs at most 99 KiB of shared memory. Heads of other sizes than `width` are filled up with zeros.
namespace nemocube::cuda::attention {
namespace {

using bf16_t = __nv_bfloat16;

/// Where a thread's elements of a 16 x 8 fragment are: rows `row` and row + 8, columns `column` and column + 1.
struct Lane {
  int warp = static_cast<int>(threadIdx.x) / warp_threads,
      lane = static_cast<int>(threadIdx.x) % warp_threads;
  int warp_row = warp * 16, row = warp_row + lane / 4, column = lane % 4 * 2;
};

/// Begins to copy `rows` rows of one head; zeros for the rows and channels that there are not.
template <int rows, int threads, int width, class RowOf>
__device__ void copy_tile(const SharedTile<width>& to, RowOf&& row_of, int channels) {
  constexpr int packs = SharedTile<width>::packs;
#pragma unroll
  for (int first = 0; first < rows * packs; first += threads) {
    const int i = first + static_cast<int>(threadIdx.x), row = i / packs, pack = i % packs;
    if (rows * packs % threads != 0 && i >= rows * packs) break;
    const bf16_t* const from = pack * 8 < channels ? row_of(row) : nullptr;
    copy_async(to.pack_address(row, pack), from ? from + pack * 8 : from, from ? 16 : 0);
  }
}

/// Stores the warp's 16 rows times `factor` (of rows `row` and row + 8), or adds that. Rounded results go through the
/// warp's rows of `tile`, which nobody else uses, so that whole packs are written.
template <int width, class RowOf>
__device__ void store_rounded(const FragmentC (&sums)[width / 8], const SharedTile<width>& tile,
                              RowOf&& row_of, const float (&factor)[2], int channels) {
  const Lane at;
#pragma unroll
  for (int j = 0; j < width / 8; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      *reinterpret_cast<unsigned*>(tile.at(at.row + 8 * i, 8 * j + at.column)) =
          pack_bf16(sums[j].v[2 * i] * factor[i], sums[j].v[2 * i + 1] * factor[i]);
  __syncwarp();
  constexpr int packs = SharedTile<width>::packs;
#pragma unroll
  for (int i = at.lane; i < 16 * packs; i += warp_threads) {
    const int row = at.warp_row + i / packs, c = i % packs * 8;
    if (bf16_t* const to = row_of(row); to && c < channels)
      __stcg(reinterpret_cast<uint4*>(to + c), *reinterpret_cast<const uint4*>(tile.at(row, c)));
  }
}
template <int width, class RowOf>
__device__ void store_pairs(const FragmentC (&sums)[width / 8], RowOf&& row_of, const float (&factor)[2],
                            int channels, bool add) {
  const Lane at;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto to = row_of(at.row + 8 * i);
    if (!to) continue;
#pragma unroll
    for (int j = 0; j < width / 8; ++j)
      if (const int c = 8 * j + at.column; c < channels) {
        const float v[2] = {sums[j].v[2 * i], sums[j].v[2 * i + 1]};
        store_sums(to + c, v, factor[i], 2, true, add);
      }
  }
}
/// rows_in(rows) are the block's rows of a result.
template <int width, class RowsIn>
__device__ void store(const FragmentC (&sums)[width / 8], const SharedTile<width>& tile,
                      const Sums<bf16_t>& to, RowsIn&& rows_in, const float (&factor)[2], int channels,
                      bool add) {
  if (to.exact)
    store_pairs<width>(sums, rows_in(to.exact), factor, channels, add);
  else if (to.rounded && add)
    store_pairs<width>(sums, rows_in(to.rounded), factor, channels, true);
  else if (to.rounded)
    store_rounded<width>(sums, tile, rows_in(to.rounded), factor, channels);
}

template <int width>
struct ForwardTiles {
  static constexpr int rows = 128, keys = width <= 192 ? 64 : 32, threads = 2 * rows;
  static constexpr int bytes = SharedTile<width>::bytes(rows + 2 * keys);
  static constexpr bool holds_q = width <= 128;  // fragments of Q stay in registers
};

/// Turns scores of `keys` keys into weights relative to the largest score of a row so far, in powers of two, and returns
/// in `factor` what the sums of earlier keys are multiplied by. `seen`: keys of this tile that a row sees, where some are
/// hidden. `total` has the sums of this thread's columns.
template <bool hidden, int keys>
__device__ void softmax(FragmentC (&s)[keys / 8], float (&most)[2], float (&total)[2], float (&factor)[2],
                        const int (&seen)[2], float scale, int column) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float largest = -infinity;
#pragma unroll
    for (int j = 0; j < keys / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[j].v[2 * i + e];
        if (hidden && 8 * j + column + e >= seen[i]) x = -infinity;
        largest = fmaxf(largest, x);
      }
    largest = fmaxf(most[i], warp_max<4>(largest) * scale);
    // A row that has seen no key yet has -inf everywhere; 0 stands in, to avoid inf - inf.
    const float shift = largest == -infinity ? 0 : largest;
    factor[i] = exp2f(most[i] - shift);
    most[i] = largest;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < keys / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[j].v[2 * i + e];
        x = exp2f(fmaf(x, scale, -shift));
        sum += x;
      }
    total[i] = total[i] * factor[i] + sum;
  }
}

template <int width>
__global__ void __launch_bounds__(ForwardTiles<width>::threads, 1)
    attention_forward_mma_kernel(const Forward<bf16_t> t) {
  using Tiles = ForwardTiles<width>;
  constexpr int rows = Tiles::rows, keys = Tiles::keys, threads = Tiles::threads;
  extern __shared__ __align__(128) char shared[];
  const SharedTile<width> q_tile(shared), k_tile(shared + SharedTile<width>::bytes(rows)),
      v_tile(shared + SharedTile<width>::bytes(rows + keys));
  const Problem& p = t.problem;
  const Lane at;
  Span span;
  // The last tiles of a pair see most keys: they come first.
  const std::int64_t index = find_tile(
      p, gridDim.x - 1 - blockIdx.x, [&](const Span& s) { return (p.columns_of(s) + rows - 1) / rows; },
      span);
  if (index < 0) return;
  const int kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t column = std::int64_t{kv_head} * p.head_dim;
  const QueryTile queries(p, span, index * rows, rows);
  const auto rows_in = [&](const auto& tensor) {
    return QueryRows(tensor, queries, span, kv_head, p.head_dim);
  };
  const QueryRows<float> lse_rows(t.lse, queries, span, kv_head, 1);
  std::int64_t seen[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    seen[i] = p.keys_seen(span, queries.first_query + queries.query_of(at.row + 8 * i));
  const std::int64_t key_end = p.keys_seen(span, queries.first_query + queries.query_of(queries.count - 1)),
                     seen_by_all = p.keys_seen(span, queries.first_query);
  const bool active = at.warp_row < queries.count;

  const auto copy_keys = [&](const SharedTile<width>& to, const Rows<bf16_t>& from, std::int64_t k0) {
    const int count = key_end - k0 < keys ? static_cast<int>(key_end - k0) : keys;
    copy_tile<keys, threads>(to, KeyRows<bf16_t>(from, span.k_begin + k0, count, column), p.head_dim);
  };
  copy_tile<rows, threads>(q_tile, rows_in(t.q), p.head_dim);
  if (key_end > 0) copy_keys(k_tile, t.k, 0);
  copy_async_commit();

  FragmentC o[width / 8];
  float most[2], total[2], factor[2];
  // A result over other keys is the sum over one key with the score lse and the value o.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* const lse = t.add ? lse_rows(at.row + 8 * i) : nullptr;
    most[i] = lse ? *lse * log2_e : -infinity;
    total[i] = most[i] == -infinity || at.column != 0 ? 0 : 1;  // once among the four threads of a row
    if (!lse) continue;
    const auto load = [&](const auto& o_rows) {
#pragma unroll
      for (int j = 0; j < width / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (const int c = 8 * j + at.column + e; c < p.head_dim)
            o[j].v[2 * i + e] = to_float(o_rows(at.row + 8 * i)[c]);
    };
    if (t.o.exact)
      load(rows_in(t.o.exact));
    else
      load(rows_in(t.o.rounded));
  }

  FragmentA q[Tiles::holds_q ? width / 16 : 1];
  for (std::int64_t k0 = 0; k0 < key_end; k0 += keys) {
    copy_keys(v_tile, t.v, k0);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    if (Tiles::holds_q && k0 == 0)
#pragma unroll
      for (int c = 0; c < width / 16; ++c)
        q[Tiles::holds_q ? c : 0] = load_a(q_tile, at.warp_row, 16 * c, at.lane);
    FragmentC s[keys / 8];
    int lane = anew(at.lane);
    if (active)
#pragma unroll
      for (int c = 0; c < width; c += 16) {
        const FragmentA a =
            Tiles::holds_q ? q[Tiles::holds_q ? c / 16 : 0] : load_a(q_tile, at.warp_row, c, lane);
#pragma unroll
        for (int j = 0; j < keys; j += 16) {
          const FragmentB2 b = load_b2_transposed(k_tile, j, c, lane);
          mma(s[j / 8], a, b.left);
          mma(s[j / 8 + 1], a, b.right);
        }
      }
    __syncthreads();  // nobody reads K any more
    if (k0 + keys < key_end) copy_keys(k_tile, t.k, k0 + keys);
    copy_async_commit();
    if (active) {
      if (k0 + keys > seen_by_all) {
        int seen_here[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
          seen_here[i] = seen[i] - k0 < keys ? static_cast<int>(seen[i] - k0) : keys;
        softmax<true, keys>(s, most, total, factor, seen_here, p.scale * log2_e, at.column);
      } else {
        const int all[2] = {keys, keys};
        softmax<false, keys>(s, most, total, factor, all, p.scale * log2_e, at.column);
      }
#pragma unroll
      for (int j = 0; j < width / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[j].v[e] *= factor[e / 2];
    }
    copy_async_wait<1>();
    __syncthreads();
    lane = anew(at.lane);
    if (active)
#pragma unroll
      for (int j = 0; j < keys; j += 16) {
        const FragmentA a = fragment_a(s[j / 8], s[j / 8 + 1]);
#pragma unroll
        for (int c = 0; c < width; c += 16) {
          const FragmentB2 b = load_b2(v_tile, j, c, lane);
          mma(o[c / 8], a, b.left);
          mma(o[c / 8 + 1], a, b.right);
        }
      }
    __syncthreads();  // nobody reads V any more
  }
  copy_async_wait<0>();
  __syncthreads();
  if (!active) return;

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    total[i] = warp_sum<4>(total[i]);
    factor[i] = total[i] == 0 ? 0 : 1 / total[i];
    if (float* const lse = lse_rows(at.row + 8 * i); lse && at.column == 0)
      *lse = ln_2 * (most[i] + log2f(total[i]));
  }
  store<width>(o, q_tile, t.o, rows_in, factor, p.head_dim, false);
}

// Backward: the rows of a block are queries (dq) or keys (dk, dv), and two tensors x1 and x2 of them are in shared
// memory: Q and dO, or K and V. Tiles of the other rows, of the two tensors y1 and y2 (K and V, or Q and dO), come one
// after the other; while one is worked on, the next is on its way. Both S = x1 y1' and dP = x2 y2' have the block's rows,
// so that P and dS go from one product to the next in registers.

enum class Part { dq, dkv, dk, dv };

template <int width, Part part>
struct BackwardTiles {
  static constexpr bool of_keys = part != Part::dq;
  static constexpr int rows = !of_keys && width <= 128 ? 128 : 64, columns = width <= 192 ? 32 : 16;
  static constexpr int threads = 2 * rows;
  static constexpr int tile_bytes = SharedTile<width>::bytes(2 * rows + 4 * columns);
};

/// What dk and dv need of the queries of a tile.
template <int columns>
struct QueryValues {
  float lse[columns], delta[columns];
  int seen[columns];  // keys of the block, 0 beyond the last query
};

template <int width, Part part>
__global__ void __launch_bounds__(BackwardTiles<width, part>::threads, 1)
    attention_backward_mma_kernel(const Backward<bf16_t> t) {
  using Tiles = BackwardTiles<width, part>;
  constexpr int rows = Tiles::rows, columns = Tiles::columns, threads = Tiles::threads;
  constexpr bool of_keys = Tiles::of_keys, wants_ds = part != Part::dv,
                 wants_p = part == Part::dkv || part == Part::dv;
  extern __shared__ __align__(128) char shared[];
  const auto tile_at = [&](int first_row) {
    return SharedTile<width>(shared + SharedTile<width>::bytes(first_row));
  };
  const SharedTile<width> x1 = tile_at(0), x2 = tile_at(rows);
  const auto y1 = [&](int stage) { return tile_at(2 * rows + 2 * stage * columns); };
  const auto y2 = [&](int stage) { return tile_at(2 * rows + (2 * stage + 1) * columns); };
  auto* const query_values = reinterpret_cast<QueryValues<columns>*>(shared + Tiles::tile_bytes);  // [stages]

  const Problem& p = t.problem;
  const Lane at;
  const int thread = static_cast<int>(threadIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t column = std::int64_t{kv_head} * p.head_dim;
  Span span;
  const std::int64_t index = find_tile(
      p, of_keys ? blockIdx.x : gridDim.x - 1 - blockIdx.x,
      [&](const Span& s) { return ((of_keys ? s.k_end - s.k_begin : p.columns_of(s)) + rows - 1) / rows; },
      span);
  if (index < 0) return;
  const std::int64_t first_row = index * rows;
  const auto query_rows = [&](const auto& tensor, const QueryTile& tile, int row_width) {
    return QueryRows(tensor, tile, span, kv_head, row_width);
  };

  // The block's rows, and the range of the others, of which `left` have not been copied yet: queries from `others` on, or
  // keys from `next_key` on.
  const QueryTile queries(p, span, of_keys ? 0 : first_row, rows);
  const std::int64_t rows_left = (of_keys ? span.k_count() : p.columns_of(span)) - first_row;
  const int count = rows_left < rows ? static_cast<int>(rows_left) : rows;
  const auto key_rows = [&](const auto& tensor) {
    return KeyRows(tensor, span.k_begin + first_row, count, column);
  };
  // The first query that sees the first of a block of keys.
  const std::int64_t diagonal = first_row - (span.k_count() - span.q_count());
  QueryTile others(p, p.causal && diagonal > 0 ? diagonal : 0);
  std::int64_t left, next_key = 0;
  std::int64_t seen[2] = {};
  float lse[2] = {}, delta[2] = {};
  if constexpr (of_keys) {
    left = p.columns_of(span) - others.first_query * p.group;
    copy_tile<rows, threads>(x1, key_rows(t.k), p.head_dim);
    if (wants_ds) copy_tile<rows, threads>(x2, key_rows(t.v), p.head_dim);
  } else {
    left = p.keys_seen(span, queries.first_query + queries.query_of(queries.count - 1));
    copy_tile<rows, threads>(x1, query_rows(t.q, queries, p.head_dim), p.head_dim);
    copy_tile<rows, threads>(x2, query_rows(t.d_o, queries, p.head_dim), p.head_dim);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (const int r = at.row + 8 * i; r < count) {
        seen[i] = p.keys_seen(span, queries.first_query + queries.query_of(r));
        lse[i] = *query_rows(t.lse, queries, 1)(r) * log2_e;
        delta[i] = *query_rows(t.delta, queries, 1)(r);
      }
  }

  float own_lse = 0, own_delta = 0;
  int own_seen = 0;
  // Begins to copy the next tile of other rows, and loads what belongs to one of its queries.
  const auto copy_others = [&](int stage) {
    if constexpr (of_keys) {
      others.cut(left, columns);
      copy_tile<columns, threads>(y1(stage), query_rows(t.q, others, p.head_dim), p.head_dim);
      copy_tile<columns, threads>(y2(stage), query_rows(t.d_o, others, p.head_dim), p.head_dim);
      own_seen = 0;
      if (thread < others.count) {
        own_lse = *query_rows(t.lse, others, 1)(thread) * log2_e;
        own_delta = *query_rows(t.delta, others, 1)(thread);
        const std::int64_t keys =
            p.causal ? others.first_query + others.query_of(thread) - diagonal + 1 : count;
        own_seen = keys < 0 ? 0 : keys < count ? static_cast<int>(keys) : count;
      }
      others.advance(columns);
    } else {
      const int n = left < columns ? static_cast<int>(left) : columns;
      copy_tile<columns, threads>(y1(stage), KeyRows(t.k, span.k_begin + next_key, n, column), p.head_dim);
      copy_tile<columns, threads>(y2(stage), KeyRows(t.v, span.k_begin + next_key, n, column), p.head_dim);
      next_key += columns;
    }
    left -= columns;
  };
  const auto put_query_values = [&](int stage) {
    if (!of_keys || thread >= columns) return;
    query_values[stage].lse[thread] = own_lse;
    query_values[stage].delta[thread] = own_delta;
    query_values[stage].seen[thread] = own_seen;
  };

  bool more = left > 0;
  if (more) {
    copy_others(0);
    put_query_values(0);
  }
  copy_async_commit();

  FragmentC d1[width / 8], d2[wants_p ? width / 8 : 1];  // dq or dk; dv
  const bool active = at.warp_row < count;
  for (int stage = 0; more; stage ^= 1) {
    more = left > 0;
    if (more) copy_others(stage ^ 1);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    if (active) {
      FragmentC s[columns / 8], ds[columns / 8];
      int lane = anew(at.lane);
      // More loads at a time would not fit into registers beside dk and dv of 128 channels.
#pragma unroll 4
      for (int c = 0; c < width; c += 16) {
        const FragmentA a1 = load_a(x1, at.warp_row, c, lane);
#pragma unroll
        for (int j = 0; j < columns; j += 16) {
          const FragmentB2 b = load_b2_transposed(y1(stage), j, c, lane);
          mma(s[j / 8], a1, b.left);
          mma(s[j / 8 + 1], a1, b.right);
        }
        if constexpr (wants_ds) {
          const FragmentA a2 = load_a(x2, at.warp_row, c, lane);
#pragma unroll
          for (int j = 0; j < columns; j += 16) {
            const FragmentB2 b = load_b2_transposed(y2(stage), j, c, lane);
            mma(ds[j / 8], a2, b.left);
            mma(ds[j / 8 + 1], a2, b.right);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < columns / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = 8 * j + at.column + e;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float &weight = s[j].v[2 * i + e], &change = ds[j].v[2 * i + e];
            const bool sees = of_keys ? at.row + 8 * i < query_values[stage].seen[c] : c < seen[i];
            const float lse_here = of_keys ? query_values[stage].lse[c] : lse[i],
                        delta_here = of_keys ? query_values[stage].delta[c] : delta[i];
            weight = sees ? exp2f(fmaf(weight, p.scale * log2_e, -lse_here)) : 0;
            change = sees ? weight * (change - delta_here) : 0;
          }
        }
      lane = anew(at.lane);
#pragma unroll
      for (int j = 0; j < columns; j += 16) {
        if constexpr (wants_p) {
          const FragmentA a = fragment_a(s[j / 8], s[j / 8 + 1]);
#pragma unroll
          for (int c = 0; c < width; c += 16) {
            const FragmentB2 b = load_b2(y2(stage), j, c, lane);
            mma(d2[c / 8], a, b.left);
            mma(d2[c / 8 + 1], a, b.right);
          }
        }
        if constexpr (wants_ds) {
          const FragmentA a = fragment_a(ds[j / 8], ds[j / 8 + 1]);
#pragma unroll
          for (int c = 0; c < width; c += 16) {
            const FragmentB2 b = load_b2(y1(stage), j, c, lane);
            mma(d1[c / 8], a, b.left);
            mma(d1[c / 8 + 1], a, b.right);
          }
        }
      }
    }
    seen[0] -= columns;
    seen[1] -= columns;
    put_query_values(stage ^ 1);
    __syncthreads();  // nobody reads this stage any more
  }
  copy_async_wait<0>();
  __syncthreads();
  if (!active) return;

  const float scale[2] = {p.scale, p.scale}, one[2] = {1, 1};
  if constexpr (!of_keys)
    store<width>(
        d1, x1, t.dq, [&](const auto& to) { return query_rows(to, queries, p.head_dim); }, scale, p.head_dim,
        t.add);
  if constexpr (of_keys && wants_ds) store<width>(d1, x1, t.dk, key_rows, scale, p.head_dim, t.add);
  if constexpr (wants_p) store<width>(d2, x2, t.dv, key_rows, one, p.head_dim, t.add);
}

/// Calls fn(std::integral_constant<int, width>()) for the least width that holds a head. False: none does, or heads are
/// so small that the general kernels are no slower.
template <class Fn>
bool visit_width(const Problem& p, Fn&& fn) {
  if (p.head_dim < 64 || p.head_dim > 256 || p.head_dim % 16 != 0) return false;
  if (p.head_dim <= 64)
    fn(std::integral_constant<int, 64>());
  else if (p.head_dim <= 96)
    fn(std::integral_constant<int, 96>());
  else if (p.head_dim <= 128)
    fn(std::integral_constant<int, 128>());
  else if (p.head_dim <= 192)
    fn(std::integral_constant<int, 192>());
  else
    fn(std::integral_constant<int, 256>());
  return true;
}

dim3 grid_of(const Problem& p, std::int64_t rows, int tile) {
  return {most_tiles(rows, p.pair_count, tile), static_cast<unsigned>(p.kv_heads)};
}

template <int width, Part part>
void launch_backward(const char* name, const Backward<bf16_t>& t) {
  using Tiles = BackwardTiles<width, part>;
  const Problem& p = t.problem;
  constexpr int values = Tiles::of_keys ? 2 * static_cast<int>(sizeof(QueryValues<Tiles::columns>)) : 0;
  launch_shared(name, attention_backward_mma_kernel<width, part>,
                grid_of(p, Tiles::of_keys ? p.k_rows : p.q_rows * p.group, Tiles::rows), Tiles::threads,
                Tiles::tile_bytes + values, t);
}

}  // namespace

bool forward_by_mma(const Forward<bf16_t>& t) {
  const Problem& p = t.problem;
  return t.aligned && visit_width(p, [&](auto width) {
           using Tiles = ForwardTiles<width>;
           launch_shared("attention forward", attention_forward_mma_kernel<width>,
                         grid_of(p, p.q_rows * p.group, Tiles::rows), Tiles::threads, Tiles::bytes, t);
         });
}

bool backward_by_mma(const Backward<bf16_t>& t) {
  return t.aligned && visit_width(t.problem, [&](auto width) {
           if (t.dq) launch_backward<width, Part::dq>("attention dq", t);
           // Registers do not hold the sums of both for wide heads.
           if constexpr (width <= 128) {
             if (t.dk || t.dv) launch_backward<width, Part::dkv>("attention dk dv", t);
           } else {
             if (t.dv) launch_backward<width, Part::dv>("attention dv", t);
             if (t.dk) launch_backward<width, Part::dk>("attention dk", t);
           }
         });
}

}  // namespace nemocube::cuda::attention
