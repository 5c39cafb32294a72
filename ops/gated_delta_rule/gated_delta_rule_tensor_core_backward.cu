#include "ops/gated_delta_rule/gated_delta_rule_backward.cuh"
#include "ops/gated_delta_rule/gated_delta_rule_tensor_core.cuh"

// Backward on tensor cores, in the kernels of gated_delta_rule_backward.cu. Blocks that walk along a sequence
// have slices of the columns of R, in registers; slices change no bit.
namespace nemocube::cuda::delta_rule {
namespace {

struct BackwardTensors {
  Rows<Element> d_o;
  const float* starts;               // S of every chunk [chunks, value_heads, 128, 128]
  Rows<Element> U, Z;                // [T, value_heads * 128]
  Rows<float> Z0;                    // [T, value_heads * 128]: (I + A)^-T P^T dO
  Rows<Element> Y;                   // [T, value_heads * 128]: (I + A)^-T to_end K
  Rows<float> q_factors, k_factors;  // [T, value_heads]: of rows of q and k in R
  float* whole;                      // [chunks, value_heads]
  Element* ends;                     // R of every chunk but the last ones of sequences
  bool with_initial;
  Gradients<Element> to;
};

struct SolveTiles {
  static constexpr std::size_t bytes = 4 * row_tile_bytes + sizeof(PairTile) + sizeof(HeadTokens);
  RowTile K, E;
  RowTile S;      // [128, 128]
  RowTile Q, dO;  // in the place of S
  PairTile& inverse;
  HeadTokens& tokens;
  __device__ explicit SolveTiles(char* at)
      : K(at),
        E(at + row_tile_bytes),
        S(at + 2 * row_tile_bytes),
        Q(S.start),
        dO(S.start + row_tile_bytes),
        inverse(*reinterpret_cast<PairTile*>(at + 4 * row_tile_bytes)),
        tokens(*reinterpret_cast<HeadTokens*>(at + 4 * row_tile_bytes + sizeof(PairTile))) {}
};

__global__ void __launch_bounds__(solve_threads)
    solve_gradients_kernel(const Rule<Element> rule, const BackwardTensors g) {
  extern __shared__ __align__(128) char shared[];
  const SolveTiles tiles(shared);
  HeadTokens& t = tiles.tokens;
  const HeadPart<Element> part = part_of_block(rule);
  const ChunkPlace& at = part.at;
  if (at.n == 0) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads,
            lane = thread % warp_threads;
  const std::int64_t key_col = column_of(part.head / rule.own_heads()), value_col = column_of(part.head);
  const bool has_start = g.with_initial || !at.first;
  const auto copy = [&](const RowTile& to, const Rows<Element>& from, std::int64_t from_col) {
    mma_chunks::copy_tokens<piece, solve_threads>(to, from, at.t0, at.n, from_col);
  };
  copy(tiles.K, rule.k, key_col);
  copy(tiles.E, rule.v, value_col);
  copy_async_commit();
  if (has_start)
    round_state<solve_threads>(tiles.S, state_at(g.starts, rule, blockIdx.x / rule.value_heads, part.head));
  if (warp == 0) warp_load_tokens(t, rule, g.to.inverses, at, part.head);
  copy_async_wait<0>();
  __syncthreads();
  if (thread < at.n) {
    g.q_factors.row(at.t0 + thread)[part.head] = t.from_start[thread] * t.q[thread];
    g.k_factors.row(at.t0 + thread)[part.head] = -t.beta[thread] * t.from_start[thread] * t.k[thread];
  }
  if (thread == 0) g.whole[blockIdx.x] = t.whole;
  set_system(tiles.inverse, tiles.K, t, warp, lane);

  // A warp has 16 rows and 64 columns of the matrices with rows for tokens. E = V - from_start K S.
  const int row = warp % 4 * 16, col = warp / 4 * 64;
  if (has_start) {
    FragmentC sums[1][8];
#pragma unroll 2
    for (int i = 0; i < dim; i += 16) {
      const FragmentA k[1] = {load_a(tiles.K, row, i, lane)};
      mma_chunks::add_product(sums, k, tiles.S, i, lane, col);
    }
    for_each_pair(sums[0], row, lane, [&](float a, float b, int l, int c, int) {
      const float2 v = mma_chunks::pair_at(tiles.E, l, col + c);
      const float factor = t.from_start[l] * t.k[l];
      set_pair(tiles.E, l, col + c, v.x - factor * a, v.y - factor * b);
    });
  }
  __syncthreads();  // all warps are done with S
  copy(tiles.Q, rule.q, key_col);
  copy(tiles.dO, g.d_o, value_col);
  copy_async_commit();
  invert(tiles.inverse, at.n);
  __syncthreads();

  // Writes 16 x 64 sums to a tile and from there to memory.
  const auto write = [&](FragmentC(&sums)[1][8], const RowTile& through, const Rows<Element>& to) {
    for_each_pair(sums[0], row, lane,
                  [&](float a, float b, int l, int c, int) { set_pair(through, l, col + c, a, b); });
    mma_chunks::store_tokens<64>(through, row, to, at.t0, at.n, value_col + col, lane, col);
  };
  {
    FragmentC sums[1][8];
    add_solution(sums, tiles.inverse, tiles.E, row, col, lane, [&](int s) { return t.beta[s]; });
    __syncthreads();  // all warps are done with E
    write(sums, tiles.E, g.U);
  }
  copy_async_wait<0>();
  __syncthreads();

  // P^T dO, in the place of E: P^T = (K Q^T) * D^T, row s, column l. Blocks below the diagonal are not used.
  {
    FragmentC products[4][2], sums[1][8];
    add_row_products(products, tiles.K, row, tiles.Q, 0, lane);
#pragma unroll
    for (int block = 0; block < 4; ++block)
      if (16 * block >= row) {
        for_each(products[block], row, 16 * block, lane, [&](float& v, int s, int l) {
          const float decayed = t.q[l] * t.k[s] * v * t.between(s, l);
          v = s <= l ? decayed : 0;
        });
        const FragmentA P[1] = {fragment_a(products[block][0], products[block][1])};
        mma_chunks::add_product(sums, P, tiles.dO, 16 * block, lane, col);
      }
    for_each_pair(sums[0], row, lane,
                  [&](float a, float b, int s, int c, int) { set_pair(tiles.E, s, col + c, a, b); });
  }
  __syncthreads();
  {
    FragmentC sums[1][8];
    add_transposed_solution(sums, tiles.inverse, tiles.E, row, col, lane, [](int) { return 1.0F; });
    for_each_pair(sums[0], row, lane, [&](float a, float b, int s, int c, int) {
      if (s < at.n) *reinterpret_cast<float2*>(g.Z0.row(at.t0 + s) + value_col + col + c) = make_float2(a, b);
    });
  }
  if (at.last) return;  // nobody reads Y
  FragmentC sums[1][8];
  add_transposed_solution(sums, tiles.inverse, tiles.K, row, col, lane,
                          [&](int l) { return t.to_end[l] * t.k[l]; });
  write(sums, tiles.Q, g.Y);  // all warps are done with Q
}

constexpr int walk_threads = mma_chunks::walk_threads;

template <int cols>
struct StateTiles {
  static constexpr int states = SharedTile<cols>::bytes(dim), values = SharedTile<cols>::bytes(piece);
  static constexpr std::size_t bytes = 3 * row_tile_bytes + states + 2 * values;
  RowTile Y, Q, K;
  SharedTile<cols> R, Z, dO;
  __device__ explicit StateTiles(char* at)
      : Y(at),
        Q(at + row_tile_bytes),
        K(at + 2 * row_tile_bytes),
        R(at + 3 * row_tile_bytes),
        Z(R.start + states),
        dO(Z.start + values) {}
};

/// A block has one sequence and head, and a slice of R. The last chunk comes first.
template <int cols>
__global__ void __launch_bounds__(walk_threads)
    state_gradients_kernel(const Rule<Element> rule, const BackwardTensors g) {
  extern __shared__ __align__(128) char shared[];
  __shared__ float q_factors[piece], k_factors[piece];
  const StateTiles<cols> tiles(shared);
  constexpr int slices = dim / cols;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads,
            lane = thread % warp_threads;
  const int col = static_cast<int>(blockIdx.x % slices) * cols,
            head = static_cast<int>(blockIdx.x / slices % rule.value_heads);
  const std::int64_t sequence = blockIdx.x / slices / rule.value_heads;
  const std::int64_t begin = rule.first_chunk[sequence], end = rule.first_chunk[sequence + 1];
  const std::int64_t key_col = column_of(head / rule.own_heads()), value_col = column_of(head) + col;
  mma_chunks::State<cols> state;
  for (std::int64_t chunk = end - 1; chunk >= begin; --chunk) {
    const ChunkPlace at = place_of(rule, sequence, chunk);
    const bool has_end = chunk + 1 < end, pass_on = chunk > begin;
    __syncthreads();  // all warps are done with the chunk behind, but for Y
    if (pass_on) {
      mma_chunks::copy_tokens<piece, walk_threads>(tiles.Q, rule.q, at.t0, at.n, key_col);
      mma_chunks::copy_tokens<piece, walk_threads>(tiles.K, rule.k, at.t0, at.n, key_col);
      mma_chunks::copy_tokens<piece, walk_threads>(tiles.dO, g.d_o, at.t0, at.n, value_col);
      if (thread < piece) {
        q_factors[thread] = thread < at.n ? g.q_factors.row(at.t0 + thread)[head] : 0;
        k_factors[thread] = thread < at.n ? g.k_factors.row(at.t0 + thread)[head] : 0;
      }
    }
    copy_async_commit();
    if (has_end) {
      state.store(tiles.R, warp, lane);
      __syncwarp();
      Element* const to = state_at(g.ends, rule, chunk, head) + col;
      constexpr int packs = cols / 8;  // a warp writes its 32 rows
#pragma unroll
      for (int i = lane; i < 32 * packs; i += warp_threads)
        *reinterpret_cast<uint4*>(to + (32 * warp + i / packs) * dim + i % packs * 8) =
            *reinterpret_cast<const uint4*>(tiles.R.at(32 * warp + i / packs, i % packs * 8));
    }
    copy_async_wait<1>();  // Y is there
    __syncthreads();

    // A warp's 16 rows of Z.
    FragmentC z[1][cols / 8];
    if (has_end)
#pragma unroll 2
      for (int i = 0; i < dim; i += 16) {
        const FragmentA y[1] = {load_a(tiles.Y, 16 * warp, i, lane)};
        mma_chunks::add_product(z, y, tiles.R, i, lane);
      }
    for_each_pair(z[0], 16 * warp, lane, [&](float a, float b, int l, int c, int) {
      float2 v = make_float2(0, 0);
      if (l < at.n) v = *reinterpret_cast<const float2*>(g.Z0.row(at.t0 + l) + value_col + c);
      set_pair(tiles.Z, l, c, v.x + a, v.y + b);
    });
    mma_chunks::store_tokens<cols>(tiles.Z, 16 * warp, g.Z, at.t0, at.n, value_col, lane);
    if (!pass_on) return;
    const float whole = g.whole[chunk * rule.value_heads + head];
    copy_async_wait<0>();
    __syncthreads();  // Z is complete, and all warps are done with Y
    const ChunkPlace before = place_of(rule, sequence, chunk - 1);
    mma_chunks::copy_tokens<piece, walk_threads>(tiles.Y, g.Y, before.t0, before.n, column_of(head));
    copy_async_commit();
    state.scale(whole);
    state.add(tiles.Q, tiles.dO, warp, lane, [&](int l) { return q_factors[l]; });
    state.add(tiles.K, tiles.Z, warp, lane, [&](int l) { return k_factors[l]; });
  }
}

constexpr int pair_tile_bytes = SharedTile<piece>::bytes(piece);

struct HeadTiles {
  static constexpr int pairs = 2 * pair_tile_bytes > static_cast<int>(sizeof(PairTile))
                                   ? 2 * pair_tile_bytes
                                   : static_cast<int>(sizeof(PairTile));
  static constexpr std::size_t bytes = 5 * row_tile_bytes + RowTile::bytes(dim) + pairs + sizeof(HeadTokens) +
                                       sizeof(TokenSums) + 3 * 2 * piece * sizeof(float);
  RowTile Q, K, U, Z, dO;
  RowTile state;           // S, then R
  SharedTile<piece> G, X;  // in the place of W
  PairTile& W;
  HeadTokens& tokens;
  TokenSums& sums;
  float (*halves)[2][piece];  // of three sums over rows, in two halves of the columns
  __device__ explicit HeadTiles(char* at)
      : Q(at),
        K(at + row_tile_bytes),
        U(at + 2 * row_tile_bytes),
        Z(at + 3 * row_tile_bytes),
        dO(at + 4 * row_tile_bytes),
        state(at + 5 * row_tile_bytes),
        G(state.start + RowTile::bytes(dim)),
        X(G.start + pair_tile_bytes),
        W(*reinterpret_cast<PairTile*>(G.start)),
        tokens(*reinterpret_cast<HeadTokens*>(G.start + pairs)),
        sums(*reinterpret_cast<TokenSums*>(G.start + pairs + sizeof(HeadTokens))),
        halves(reinterpret_cast<float (*)[2][piece]>(G.start + pairs + sizeof(HeadTokens) +
                                                     sizeof(TokenSums))) {}
};

constexpr int head_threads = tile_threads, head_warps = head_threads / warp_threads;

/// Adds up what the four threads of a row have, for the thread's upper and lower row.
__device__ void set_row_sums(float (&to)[piece], float upper, float lower, int row, int lane) {
  upper = warp_sum<4>(upper);
  lower = warp_sum<4>(lower);
  if (lane % 4 != 0) return;
  to[row + lane / 4] = upper;
  to[row + lane / 4 + 8] = lower;
}

/// Between tokens: sets G and X, and the sums `crossing` and `direct`. A warp has 16 rows l and 32 columns s.
__device__ void set_pairs(const HeadTiles& tiles, int warp, int lane) {
  const HeadTokens& t = tiles.tokens;
  const int row = warp % 4 * 16, half = warp / 4, col = half * 32;
  FragmentC products[2][2], scores[2][2], X[2][2], W[2][2];
  float direct[2] = {};
  add_row_products(products, tiles.K, row, tiles.K, col, lane);
  add_row_products(X, tiles.Z, row, tiles.U, col, lane);
#pragma unroll
  for (int block = 0; block < 2; ++block)
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int l = row + lane / 4 + i / 2 * 8, s = col + 16 * block + 8 * j + lane % 4 * 2 + i % 2;
        const float x = s < l ? -X[block][j].v[i] * t.between(s, l) : 0;
        const float kk = t.k[l] * t.k[s] * products[block][j].v[i];
        direct[i / 2] += x * kk;
        X[block][j].v[i] = t.beta[l] * x;
        W[block][j].v[i] = t.beta[l] * x * kk;
        products[block][j].v[i] = 0;
      }
  set_row_sums(tiles.halves[0][half], direct[0], direct[1], row, lane);
  add_row_products(products, tiles.Q, row, tiles.K, col, lane);
  add_row_products(scores, tiles.dO, row, tiles.U, col, lane);
#pragma unroll
  for (int block = 0; block < 2; ++block)
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int l = row + lane / 4 + i / 2 * 8, s = col + 16 * block + 8 * j + lane % 4 * 2 + i % 2;
        const float score = s <= l ? scores[block][j].v[i] * t.between(s, l) : 0;
        scores[block][j].v[i] = score;
        const float w = W[block][j].v[i] + score * (t.q[l] * t.k[s] * products[block][j].v[i]);
        tiles.W.rows[l][s] = s < l ? w : 0;
      }
  sum_crossing(tiles.sums.crossing, tiles.W);
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    for_each_pair(scores[block], row, lane, [&](float a, float b, int l, int s, int) {
      set_pair(tiles.G, l, col + 16 * block + s, a, b);
    });
    for_each_pair(X[block], row, lane, [&](float a, float b, int l, int s, int) {
      set_pair(tiles.X, l, col + 16 * block + s, a, b);
    });
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < piece) tiles.sums.direct[thread] = tiles.halves[0][0][thread] + tiles.halves[0][1][thread];
}

/// dV = beta Z, and the sums Z V. A warp has every eighth token.
__device__ void write_values(const HeadTiles& tiles, const Rule<Element>& rule, const Rows<Element>& dv,
                             const ChunkPlace& at, std::int64_t value_col, int warp, int lane) {
  for (int l = warp; l < at.n; l += head_warps) {
    const uint2 z = *reinterpret_cast<const uint2*>(tiles.Z.at(l, lane * 4)),
                v = *reinterpret_cast<const uint2*>(rule.v.row(at.t0 + l) + value_col + lane * 4);
    const float beta = tiles.tokens.beta[l];
    const float2 z0 = mma_chunks::to_floats(z.x), z1 = mma_chunks::to_floats(z.y),
                 v0 = mma_chunks::to_floats(v.x), v1 = mma_chunks::to_floats(v.y);
    *reinterpret_cast<uint2*>(dv.row(at.t0 + l) + value_col + lane * 4) =
        make_uint2(pack_bf16(beta * z0.x, beta * z0.y), pack_bf16(beta * z1.x, beta * z1.y));
    const float sum = warp_sum(z0.x * v0.x + z0.y * v0.y + z1.x * v1.x + z1.y * v1.y);
    if (lane == 0) tiles.sums.values[l] = sum;
  }
}

/// sums = 16 rows and 64 columns of rows times the transpose of a state.
__device__ void set_state_product(FragmentC (&sums)[1][8], const RowTile& rows, const RowTile& state, int row,
                                  int col, int lane) {
#pragma unroll
  for (FragmentC& c : sums[0]) c = {};
#pragma unroll 2
  for (int v = 0; v < dim; v += 16) {
    const FragmentA a = load_a(rows, row, v, lane);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const FragmentB2 pair = load_b2_transposed(state, col + 8 * j, v, lane);
      mma(sums[0][j], a, pair.left);
      mma(sums[0][j + 1], a, pair.right);
    }
  }
}

/// sums += 16 rows, from `row` on, of a matrix with an element for each pair of tokens (or its transpose),
/// its columns times factors, times 64 columns of rows.
template <bool transposed>
__device__ void add_pair_product(FragmentC (&sums)[1][8], const SharedTile<piece>& pairs,
                                 const float (&factors)[tile], const RowTile& rows, int row, int col,
                                 int lane) {
#pragma unroll 1
  for (int k = transposed ? row : 0; transposed ? k < piece : k <= row; k += 16) {
    const FragmentA raw = transposed ? load_a_transposed(pairs, k, row, lane) : load_a(pairs, row, k, lane);
    const FragmentA a[1] = {mma_chunks::scaled_columns(raw, lane, [&](int c) { return factors[k + c]; })};
    mma_chunks::add_product(sums, a, rows, k, lane, col);
  }
}

__device__ void write_sums(FragmentC (&sums)[1][8], const Rows<float>& to, const ChunkPlace& at,
                           std::int64_t to_col, int row, int lane) {
  for_each_pair(sums[0], row, lane, [&](float a, float b, int l, int c, int) {
    if (l < at.n) *reinterpret_cast<float2*>(to.row(at.t0 + l) + to_col + c) = make_float2(a, b);
  });
}

__global__ void __launch_bounds__(head_threads, 1)
    head_gradients_kernel(const Rule<Element> rule, const BackwardTensors g) {
  extern __shared__ __align__(128) char shared[];
  const HeadTiles tiles(shared);
  HeadTokens& t = tiles.tokens;
  const HeadPart<Element> part = part_of_block(rule);
  const ChunkPlace& at = part.at;
  if (at.n == 0) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads,
            lane = thread % warp_threads;
  const std::int64_t chunk = blockIdx.x / rule.value_heads;
  const std::int64_t key_col = column_of(part.head / rule.own_heads()), value_col = column_of(part.head);
  const bool has_start = g.with_initial || !at.first, has_end = !at.last;
  const float* const S = state_at(g.starts, rule, chunk, part.head);
  const auto copy = [&](const RowTile& to, const Rows<Element>& from, std::int64_t from_col) {
    mma_chunks::copy_tokens<piece, head_threads>(to, from, at.t0, at.n, from_col);
  };
  copy(tiles.Q, rule.q, key_col);
  copy(tiles.K, rule.k, key_col);
  copy(tiles.U, g.U, value_col);
  copy(tiles.Z, g.Z, value_col);
  copy(tiles.dO, g.d_o, value_col);
  copy_async_commit();
  if (has_start) round_state<head_threads>(tiles.state, S);
  if (warp == 0) warp_load_tokens(t, rule, g.to.inverses, at, part.head);
  copy_async_wait<0>();
  __syncthreads();
  set_pairs(tiles, warp, lane);
  write_values(tiles, rule, g.to.dv, at, value_col, warp, lane);
  __syncthreads();  // G and X are complete

  // A warp has 16 rows and 64 columns of dQ, then of dK.
  const int row = warp % 4 * 16, half = warp / 4, col = half * 64;
  const std::int64_t to_col = column_of(part.head) + col;
  // Sums over a row of `sums` times factor(l), and of their products with rows of q or k.
  const auto scale_and_sum = [&](FragmentC(&sums)[1][8], const RowTile& rows, const float* norms, int which,
                                 auto&& factor) {
    float of_row[2] = {};
    for_each_pair(sums[0], row, lane, [&](float& a, float& b, int l, int c, int lower) {
      const float2 x = mma_chunks::pair_at(rows, l, col + c);
      const float2 scale = factor(l);
      of_row[lower] += scale.x * norms[l] * (a * x.x + b * x.y);
      a *= scale.y;
      b *= scale.y;
    });
    set_row_sums(tiles.halves[which][half], of_row[0], of_row[1], row, lane);
  };
  FragmentC sums[1][8], of_K[1][8];
  if (has_start) {
    set_state_product(sums, tiles.dO, tiles.state, row, col, lane);
    scale_and_sum(sums, tiles.Q, t.q, 0,
                  [&](int l) { return make_float2(t.from_start[l], t.from_start[l]); });
    set_state_product(of_K, tiles.Z, tiles.state, row, col, lane);
    scale_and_sum(of_K, tiles.K, t.k, 1, [&](int l) { return make_float2(1, -t.beta[l] * t.from_start[l]); });
  } else {
    set_row_sums(tiles.halves[0][half], 0, 0, row, lane);
    set_row_sums(tiles.halves[1][half], 0, 0, row, lane);
  }
  add_pair_product<false>(sums, tiles.G, t.k, tiles.K, row, col, lane);
  write_sums(sums, g.to.dQ, at, to_col, row, lane);

  float across = 0;
  if (has_end) {
    __syncthreads();  // all warps are done with S
    const Element* const R = state_at(g.ends, rule, chunk, part.head);
    copy_rows_async<dim, head_threads>(tiles.state, thread, [&](int i) { return R + i * dim; });
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    if (has_start) {
      for (int i = thread; i < dim * dim / 2; i += head_threads) {
        const float2 r = mma_chunks::pair_at(tiles.state, i / (dim / 2), i % (dim / 2) * 2),
                     s = *reinterpret_cast<const float2*>(S + i * 2);
        across += r.x * s.x + r.y * s.y;
      }
      across = warp_sum(across);
      if (lane == 0) tiles.sums.parts[warp] = across;
    }
    set_state_product(sums, tiles.U, tiles.state, row, col, lane);
    scale_and_sum(sums, tiles.K, t.k, 2, [&](int l) { return make_float2(t.to_end[l], t.to_end[l]); });
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) of_K[0][j].v[i] += sums[0][j].v[i];
  } else {
    set_row_sums(tiles.halves[2][half], 0, 0, row, lane);
  }
  add_pair_product<true>(of_K, tiles.G, t.q, tiles.Q, row, col, lane);
  add_pair_product<false>(of_K, tiles.X, t.k, tiles.K, row, col, lane);
  add_pair_product<true>(of_K, tiles.X, t.k, tiles.K, row, col, lane);
  write_sums(of_K, g.to.dK, at, to_col, row, lane);
  __syncthreads();
  if (thread < piece) {
    const auto both = [&](int which) {
      return tiles.halves[which][0][thread] + tiles.halves[which][1][thread];
    };
    tiles.sums.read[thread] = both(0);
    tiles.sums.erased[thread] = both(1);
    tiles.sums.ended[thread] = both(2);
  }
  __syncthreads();
  across = 0;
  if (has_start && has_end) {
    for (const float p : tiles.sums.parts) across += p;
    across *= t.whole;
  }
  if (thread < warp_threads) finish_tokens(rule, g.to, part, t, tiles.sums, across);
}

}  // namespace

bool tensor_core_backward_fits() {
  return static_cast<std::size_t>(device_limits().shared_bytes) >= HeadTiles::bytes;
}

void tensor_core_backward(const DeltaRuleProblem& problem, const DeltaRuleGradients& gradients,
                          const Tensor& d_o, const Tensor& chunk_starts) {
  const DeltaRuleProblem aligned = aligned_problem(problem);
  const Tensor aligned_d_o = mma_chunks::aligned_operand(d_o);
  const mma_chunks::AlignedOutput dv(gradients.v);
  DeltaRuleGradients aligned_gradients = gradients;
  aligned_gradients.v = dv.get();
  const Rule<Element> rule(aligned);
  const std::int64_t tokens = d_o.rows(), heads = rule.value_heads;
  const auto working = [&](const Shape& shape, DType dtype) {
    return Tensor::empty(shape, dtype, d_o.device());
  };
  const auto rows = [&](DType dtype) { return working({tokens, heads * dim}, dtype); };
  const Tensor U = rows(DType::bf16), Z = rows(DType::bf16), Z0 = rows(DType::f32), Y = rows(DType::bf16),
               dQ = rows(DType::f32), dK = rows(DType::f32), q_factors = working({tokens, heads}, DType::f32),
               k_factors = working({tokens, heads}, DType::f32),
               whole = working({rule.chunks, heads}, DType::f32),
               ends = working(chunk_starts.shape(), DType::bf16);
  const Tensor inverses = form_inverses(rule, aligned.q, aligned.k);
  const BackwardTensors g{.d_o = rows_of<Element>(aligned_d_o),
                          .starts = data_of<float>(chunk_starts),
                          .U = rows_of<Element>(U),
                          .Z = rows_of<Element>(Z),
                          .Z0 = rows_of<float>(Z0),
                          .Y = rows_of<Element>(Y),
                          .q_factors = rows_of<float>(q_factors),
                          .k_factors = rows_of<float>(k_factors),
                          .whole = data_of<float>(whole),
                          .ends = data_of<Element>(ends),
                          .with_initial = problem.initial_state.defined(),
                          .to = gradients_of<Element>(aligned_gradients, inverses, dQ, dK)};
  launch_shared("gated_delta_rule solve gradients", solve_gradients_kernel, head_blocks(rule), solve_threads,
                SolveTiles::bytes, rule, g);
  constexpr int cols = 32;
  launch_shared("gated_delta_rule state gradients", state_gradients_kernel<cols>,
                blocks_for(rule.sequences * heads * (dim / cols), 1), walk_threads, StateTiles<cols>::bytes,
                rule, g);
  launch_shared("gated_delta_rule head gradients", head_gradients_kernel, head_blocks(rule), head_threads,
                HeadTiles::bytes, rule, g);
  add_value_heads(rule, g.to, aligned.q, aligned.k, gradients);
  dv.finish();
}

}  // namespace nemocube::cuda::delta_rule
