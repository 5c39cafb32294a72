#include "ops/gated_delta_rule/gated_delta_rule.cuh"

// Backward in five kernels: factors that normalise q and k; for each chunk and head U, and what the
// transposed triangular system gives for P^T dO and for K, whatever R; the gradients R of the states, last
// chunk first; for each chunk and head all gradients, those of the normalised q and k for each value head;
// for each token and key head the sums over value heads and the step through the normalisation. The formulas
// and names are those of gated_delta_rule_chunked_grad_cpu.cpp.
namespace nemocube::cuda {
namespace {

using namespace delta_rule;

template <class T>
struct BackwardTensors {
  Rows<float> inverses;
  Rows<float> U, Z;     // [T, value_heads * value_dim]; Z is (I + A)^-T P^T dO at first
  Rows<float> Y;        // [T, value_heads * key_dim]: (I + A)^-T to_end K
  const float* starts;  // S of every chunk [chunks, value_heads, key_dim, value_dim]
  float* ends;          // R of every chunk but the last ones of sequences
  bool with_initial;
  Rows<T> d_o;
  Rows<float> dQ, dK;  // [T, value_heads * key_dim]
  Rows<T> dq, dk, dv, da, db;
  float *dA_log, *ddt_bias;  // [chunks, value_heads]
};

template <class T>
__global__ void __launch_bounds__(tile_threads)
    solve_gradients_kernel(const Rule<T> rule, const BackwardTensors<T> g) {
  __shared__ Operands operands;
  __shared__ HeadTokens t;
  __shared__ PairTile pairs;
  const HeadPart<T> part = part_of_block(rule);
  if (part.at.n == 0) return;
  block_load_tokens(t, rule, g.inverses, part.at, part.head);
  const UnitRows<T> Q = part.Q(t), K = part.K(t);
  const Matrix<T> V = part.values(rule.v), dO = part.values(g.d_o);
  const Matrix<float> U = part.of_values(g.U), Z = part.of_values(g.Z), Y = part.of_keys(g.Y),
                      S = part.state(g.starts, blockIdx.x / rule.value_heads);
  const bool has_start = g.with_initial || !part.at.first;

  // Z = P^T dO, and U = V - from_start K S
  {
    float P[own][own] = {};
    add_product<Order::depth, Order::depth>(P, operands, rule.key_dim, Q, K);
    for_own([&](int i, int j, int l, int s) { P[i][j] = s <= l ? P[i][j] * t.between(s, l) : 0; });
    pairs.store(P);
  }
  __syncthreads();
  for (int v0 = 0; v0 < rule.value_dim; v0 += tile) {
    float sums[own][own] = {};
    add_product<Order::side, Order::side>(
        sums, operands, part.at.n, [&](int s, int l) { return pairs.rows[l][s]; },
        [&](int v, int l) { return dO(l, v0 + v); });
    for_own([&](int i, int j, int s, int v) {
      set_element(Z, s, v0 + v, sums[i][j]);
      sums[i][j] = 0;
    });
    if (has_start)
      add_product<Order::depth, Order::side>(sums, operands, rule.key_dim, K,
                                             [&](int v, int i) { return S(i, v0 + v); });
    for_own([&](int i, int j, int l, int v) {
      set_element(U, l, v0 + v, V(l, v0 + v) - t.from_start[l] * sums[i][j]);
    });
  }

  // The solutions take the place of the right sides, which a product has read when it ends.
  __syncthreads();
  form_inverse(pairs, operands, part, t);
  __syncthreads();
  for (int v0 = 0; v0 < rule.value_dim; v0 += tile) {
    float sums[own][own] = {};
    add_product<Order::depth, Order::side>(
        sums, operands, part.at.n, [&](int l, int s) { return pairs.rows[l][s]; },
        [&](int v, int s) { return t.beta[s] * U(s, v0 + v); });
    for_own([&](int i, int j, int l, int v) {
      set_element(U, l, v0 + v, sums[i][j]);
      sums[i][j] = 0;
    });
    add_product<Order::side, Order::side>(
        sums, operands, part.at.n, [&](int s, int l) { return pairs.rows[l][s]; },
        [&](int v, int l) { return Z(l, v0 + v); });
    for_own([&](int i, int j, int s, int v) { set_element(Z, s, v0 + v, sums[i][j]); });
  }
  if (part.at.last) return;  // nobody reads Y
  for (int i0 = 0; i0 < rule.key_dim; i0 += tile) {
    float sums[own][own] = {};
    add_product<Order::side, Order::side>(
        sums, operands, part.at.n, [&](int s, int l) { return pairs.rows[l][s]; },
        [&](int i, int l) { return t.to_end[l] * K(l, i0 + i); });
    for_own([&](int i, int j, int s, int c) { set_element(Y, s, i0 + c, sums[i][j]); });
  }
}

/// A block has one sequence and head, and 64 columns of the state.
template <class T>
__global__ void __launch_bounds__(tile_threads)
    state_gradients_kernel(const Rule<T> rule, const BackwardTensors<T> g) {
  __shared__ Operands operands;
  __shared__ HeadTokens t;
  __shared__ PairTile decayed_Z;
  const std::int64_t sequence = blockIdx.x / rule.value_heads;
  const int head = static_cast<int>(blockIdx.x % rule.value_heads), v0 = static_cast<int>(blockIdx.y) * tile;
  const std::int64_t begin = rule.first_chunk[sequence], end = rule.first_chunk[sequence + 1];
  for (std::int64_t chunk = end - 1; chunk >= begin; --chunk) {
    const HeadPart<T> part{place_of(rule, sequence, chunk), head, rule};
    const Matrix<float> R = part.state(g.ends, chunk), Y = part.of_keys(g.Y), Z = part.of_values(g.Z);
    const bool has_end = chunk + 1 < end;
    block_load_tokens(t, rule, g.inverses, part.at, head);
    float z[own][own] = {};
    if (has_end)
      add_product<Order::depth, Order::side>(z, operands, rule.key_dim, Y,
                                             [&](int v, int i) { return R(i, v0 + v); });
    for_own([&](int i, int j, int l, int v) {
      z[i][j] += Z(l, v0 + v);
      set_element(Z, l, v0 + v, z[i][j]);
      z[i][j] *= t.beta[l] * t.from_start[l];
    });
    if (chunk == begin) return;
    decayed_Z.store(z);
    __syncthreads();
    const UnitRows<T> Q = part.Q(t), K = part.K(t);
    const Matrix<T> dO = part.values(g.d_o);
    const Matrix<float> before = part.state(g.ends, chunk - 1);
    for (int i0 = 0; i0 < rule.key_dim; i0 += tile) {
      float sums[own][own] = {};
      add_product<Order::side, Order::side>(
          sums, operands, part.at.n, [&](int i, int l) { return t.from_start[l] * Q(l, i0 + i); },
          [&](int v, int l) { return dO(l, v0 + v); });
      add_product<Order::side, Order::side>(
          sums, operands, part.at.n, [&](int i, int l) { return -K(l, i0 + i); },
          [&](int v, int l) { return decayed_Z.rows[l][v]; });
      for_own([&](int i, int j, int p, int v) {
        const float decayed = has_end ? t.whole * R(i0 + p, v0 + v) : 0;
        set_element(before, i0 + p, v0 + v, decayed + sums[i][j]);
      });
    }
    // Reads of R come after the barriers of the next tokens.
  }
}

/// The sums over rows of a tile: those of the thread's elements, then those of the 16 threads of the rows.
__device__ void add_up_rows(float (&to)[tile], float (&of_row)[own]) {
#pragma unroll
  for (int i = 0; i < own; ++i) {
    of_row[i] = warp_sum<16>(of_row[i]);
    if (threadIdx.x % 16 == 0) to[static_cast<int>(threadIdx.x) / 16 * own + i] = of_row[i];
  }
}

/// What each token's dg and dbeta are summed from.
struct TokenSums {
  float crossing[tile];  // products between tokens of the chunk that cross to this token
  float read[tile];      // from_start dO S^T Q
  float erased[tile];    // Z S^T K
  float ended[tile];     // to_end U R^T K
  float direct[tile];    // the part of dbeta from products between tokens
  float values[tile];    // Z V
  float parts[tile_threads / warp_threads];
};

struct HeadTiles {
  Operands operands;
  PairTile G, X;
  HeadTokens t;
  TokenSums sums;
};

/// crossing[t] = the sum of W[l, s] over s < t <= l; W[l, s] is zero for s >= l. Overwrites W.
__device__ void sum_crossing(float (&crossing)[tile], PairTile& W) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (thread < tile) {
    float below = 0;
    for (int l = tile - 1; l > thread; --l) {
      below += W.rows[l][thread];
      W.rows[l][thread] = below;
    }
  }
  __syncthreads();
  constexpr int of_row = tile_threads / tile;
  float sum = 0;
  for (int s = thread % of_row; s < thread / of_row; s += of_row) sum += W.rows[thread / of_row][s];
  sum = warp_sum<of_row>(sum);
  if (thread % of_row == 0) crossing[thread / of_row] = sum;
  __syncthreads();
}

/// Gradients of a, b, A_log and dt_bias of one head. `across` crosses the whole chunk. One warp.
template <class T>
__device__ void finish_tokens(const Rule<T>& rule, const BackwardTensors<T>& g, const HeadPart<T>& part,
                              const HeadTokens& t, const TokenSums& sums, float across) {
  constexpr int own_tokens = tile / warp_threads;
  const float rate = rule.rate(part.head);
  float decay = 0, bias = 0;
#pragma unroll
  for (int i = 0; i < own_tokens; ++i) {
    const int l = static_cast<int>(threadIdx.x) + i * warp_threads;
    if (l >= part.at.n) continue;
    float ended = 0, started = 0;
    for (int s = 0; s < l; ++s) ended += sums.ended[s];
    for (int s = part.at.n - 1; s >= l; --s)
      started += sums.read[s] - t.beta[s] * t.from_start[s] * sums.erased[s];
    const float dg = sums.crossing[l] + across + ended + started;
    const float da = dg * rate * softplus_grad(t.a[l]);
    const float dbeta = sums.direct[l] + (sums.values[l] - t.from_start[l] * sums.erased[l]);
    g.da.row(part.at.t0 + l)[part.head] = rounded<T>(da);
    g.db.row(part.at.t0 + l)[part.head] = rounded<T>(dbeta * t.beta[l] * t.rest[l]);
    decay += dg * t.dt[l];
    bias += da;
  }
  decay = warp_sum(decay);
  bias = warp_sum(bias);
  if (threadIdx.x == 0) {
    g.dA_log[blockIdx.x] = rate * decay;
    g.ddt_bias[blockIdx.x] = bias;
  }
}

/// whole <R, S>, for all threads.
__device__ float product_of_states(const float* R, const float* S, std::int64_t elements,
                                   float (&parts)[tile_threads / warp_threads]) {
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < elements; i += tile_threads) sum += R[i] * S[i];
  sum = warp_sum(sum);
  if (threadIdx.x % warp_threads == 0) parts[threadIdx.x / warp_threads] = sum;
  __syncthreads();
  sum = 0;
  for (const float part : parts) sum += part;
  return sum;
}

template <class T>
__global__ void __launch_bounds__(tile_threads)
    head_gradients_kernel(const Rule<T> rule, const BackwardTensors<T> g) {
  extern __shared__ __align__(16) char shared[];
  HeadTiles& tiles = *reinterpret_cast<HeadTiles*>(shared);
  Operands& operands = tiles.operands;
  HeadTokens& t = tiles.t;
  TokenSums& sums = tiles.sums;
  const HeadPart<T> part = part_of_block(rule);
  if (part.at.n == 0) return;
  block_load_tokens(t, rule, g.inverses, part.at, part.head);
  const std::int64_t chunk = blockIdx.x / rule.value_heads;
  const UnitRows<T> Q = part.Q(t), K = part.K(t);
  const Matrix<T> V = part.values(rule.v), dO = part.values(g.d_o), dv = part.values(g.dv);
  const Matrix<float> U = part.of_values(g.U), Z = part.of_values(g.Z), dQ = part.of_keys(g.dQ),
                      dK = part.of_keys(g.dK), S = part.state(g.starts, chunk), R = part.state(g.ends, chunk);
  const bool has_start = g.with_initial || !part.at.first, has_end = !part.at.last;

  // Between tokens: row l, column s.
  {
    float products[own][own] = {}, scores[own][own] = {}, W[own][own] = {}, direct[own] = {};
    add_product<Order::depth, Order::depth>(products, operands, rule.key_dim, K, K);
    add_product<Order::depth, Order::depth>(scores, operands, rule.value_dim, Z, U);
    for_own([&](int i, int j, int l, int s) {
      const float x = s < l ? -scores[i][j] * t.between(s, l) : 0;
      direct[i] += x * products[i][j];
      W[i][j] = t.beta[l] * x * products[i][j];
      scores[i][j] = t.beta[l] * x;
    });
    tiles.X.store(scores);
    add_up_rows(sums.direct, direct);
    for_own([&](int i, int j, int, int) { products[i][j] = scores[i][j] = 0; });
    add_product<Order::depth, Order::depth>(products, operands, rule.key_dim, Q, K);
    add_product<Order::depth, Order::depth>(scores, operands, rule.value_dim, dO, U);
    for_own([&](int i, int j, int l, int s) {
      scores[i][j] = s <= l ? scores[i][j] * t.between(s, l) : 0;
      if (s < l) W[i][j] += scores[i][j] * products[i][j];
    });
    tiles.G.store(W);
    sum_crossing(sums.crossing, tiles.G);
    tiles.G.store(scores);
  }

  {
    float values[own] = {};
    for (int v0 = 0; v0 < rule.value_dim; v0 += tile)
      for_own([&](int i, int, int l, int v) {
        const float z = Z(l, v0 + v);
        values[i] += z * V(l, v0 + v);
        set_element(dv, l, v0 + v, t.beta[l] * z);
      });
    add_up_rows(sums.values, values);
  }
  __syncthreads();  // G and X are complete

  float read[own] = {}, erased[own] = {}, ended[own] = {};
  for (int i0 = 0; i0 < rule.key_dim; i0 += tile) {
    float of_Q[own][own] = {}, of_K[own][own] = {};
    if (has_start) {
      add_product<Order::depth, Order::depth>(of_Q, operands, rule.value_dim, dO,
                                              [&](int i, int v) { return S(i0 + i, v); });
      add_product<Order::depth, Order::depth>(of_K, operands, rule.value_dim, Z,
                                              [&](int i, int v) { return S(i0 + i, v); });
      for_own([&](int i, int j, int l, int p) {
        of_Q[i][j] *= t.from_start[l];
        read[i] += of_Q[i][j] * Q(l, i0 + p);
        erased[i] += of_K[i][j] * K(l, i0 + p);
        of_K[i][j] *= -t.beta[l] * t.from_start[l];
      });
    }
    add_product<Order::depth, Order::side>(
        of_Q, operands, part.at.n, [&](int l, int s) { return tiles.G.rows[l][s]; },
        [&](int i, int s) { return K(s, i0 + i); });
    for_own([&](int i, int j, int l, int p) {
      set_element(dQ, l, i0 + p, of_Q[i][j]);
      of_Q[i][j] = 0;
    });
    if (has_end) {
      add_product<Order::depth, Order::depth>(of_Q, operands, rule.value_dim, U,
                                              [&](int i, int v) { return R(i0 + i, v); });
      for_own([&](int i, int j, int l, int p) {
        of_Q[i][j] *= t.to_end[l];
        ended[i] += of_Q[i][j] * K(l, i0 + p);
        of_K[i][j] += of_Q[i][j];
      });
    }
    add_product<Order::side, Order::side>(
        of_K, operands, part.at.n, [&](int s, int l) { return tiles.G.rows[l][s]; },
        [&](int i, int l) { return Q(l, i0 + i); });
    add_product<Order::side, Order::side>(
        of_K, operands, part.at.n, [&](int s, int l) { return tiles.X.rows[l][s] + tiles.X.rows[s][l]; },
        [&](int i, int l) { return K(l, i0 + i); });
    for_own([&](int i, int j, int l, int p) { set_element(dK, l, i0 + p, of_K[i][j]); });
  }
  add_up_rows(sums.read, read);
  add_up_rows(sums.erased, erased);
  add_up_rows(sums.ended, ended);
  float across = 0;
  if (has_start && has_end)
    across = t.whole * product_of_states(R.start, S.start, rule.state_elements(), sums.parts);
  __syncthreads();
  if (threadIdx.x < warp_threads) finish_tokens(rule, g, part, t, sums, across);
}

/// The gradient of a row of q or k, by one warp: the sum over value heads, through the normalisation.
template <class T>
__global__ void __launch_bounds__(row_threads)
    normalisation_gradients_kernel(const Rule<T> rule, const BackwardTensors<T> g, std::int64_t rows) {
  const std::int64_t index = std::int64_t{blockIdx.x} * row_warps + threadIdx.x / warp_threads;
  if (index >= rows) return;
  const std::int64_t token = index / (2 * rule.key_heads);
  const int column = static_cast<int>(index % (2 * rule.key_heads)), head = column % rule.key_heads,
            lane = static_cast<int>(threadIdx.x) % warp_threads;
  const bool of_q = column < rule.key_heads;
  const std::int64_t at = std::int64_t{head} * rule.key_dim;
  const T* const x = (of_q ? rule.q : rule.k).row(token) + at;
  T* const to = (of_q ? g.dq : g.dk).row(token) + at;
  const float* const parts =
      (of_q ? g.dQ : g.dK).row(token) + std::int64_t{head} * rule.own_heads() * rule.key_dim;
  const float inverse = g.inverses.row(token)[column];
  const auto gradient = [&](int i) {
    float sum = 0;
    for (int h = 0; h < rule.own_heads(); ++h) sum += parts[std::int64_t{h} * rule.key_dim + i];
    return of_q ? sum * rule.q_scale : sum;
  };
  float along = 0;
  for (int i = lane; i < rule.key_dim; i += warp_threads) along += gradient(i) * (to_float(x[i]) * inverse);
  along = warp_sum(along);
  for (int i = lane; i < rule.key_dim; i += warp_threads)
    to[i] = rounded<T>(inverse * (gradient(i) - along * (to_float(x[i]) * inverse)));
}

void backward(const DeltaRuleProblem& problem, const DeltaRuleGradients& gradients, const Tensor& d_o,
              const Tensor& chunk_starts) {
  const DeltaRuleOptions& options = problem.options;
  const std::int64_t tokens = d_o.rows();
  if (problem.chunks.count == 0 || tokens == 0) return;
  const auto working = [&](std::int64_t dim) {
    return Tensor::empty({tokens, options.value_heads * dim}, DType::f32, d_o.device());
  };
  const Tensor U = working(options.value_dim), Z = working(options.value_dim), Y = working(options.key_dim),
               dQ = working(options.key_dim), dK = working(options.key_dim);
  const Tensor ends = Tensor::empty(chunk_starts.shape(), DType::f32, d_o.device());
  visit_storage("gated_delta_rule", d_o.dtype(), [&]<class T>(TypeTag<T>) {
    const Rule<T> rule(problem);
    const Tensor inverses = form_inverses(rule, problem.q);
    const BackwardTensors<T> g{.inverses = rows_of<float>(inverses),
                               .U = rows_of<float>(U),
                               .Z = rows_of<float>(Z),
                               .Y = rows_of<float>(Y),
                               .starts = data_of<float>(chunk_starts),
                               .ends = data_of<float>(ends),
                               .with_initial = problem.initial_state.defined(),
                               .d_o = rows_of<T>(d_o),
                               .dQ = rows_of<float>(dQ),
                               .dK = rows_of<float>(dK),
                               .dq = rows_of<T>(gradients.q),
                               .dk = rows_of<T>(gradients.k),
                               .dv = rows_of<T>(gradients.v),
                               .da = rows_of<T>(gradients.a),
                               .db = rows_of<T>(gradients.b),
                               .dA_log = data_of<float>(gradients.A_log),
                               .ddt_bias = data_of<float>(gradients.dt_bias)};
    launch("gated_delta_rule solve gradients", solve_gradients_kernel<T>, head_blocks(rule), tile_threads,
           rule, g);
    launch("gated_delta_rule state gradients", state_gradients_kernel<T>, walk_blocks(rule), tile_threads,
           rule, g);
    launch_shared("gated_delta_rule head gradients", head_gradients_kernel<T>, head_blocks(rule),
                  tile_threads, sizeof(HeadTiles), rule, g);
    launch("gated_delta_rule normalisation gradients", normalisation_gradients_kernel<T>,
           blocks_for(inverses.numel(), row_warps), row_threads, rule, g, inverses.numel());
  });
}

const Provide provided(delta_rule_chunked_backward, backward);

}  // namespace
}  // namespace nemocube::cuda
