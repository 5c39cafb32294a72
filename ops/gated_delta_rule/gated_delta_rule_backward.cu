#include "ops/gated_delta_rule/gated_delta_rule_backward.cuh"

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
  Rows<float> U, Z;     // [T, value_heads * value_dim]; Z is (I + A)^-T P^T dO at first
  Rows<float> Y;        // [T, value_heads * key_dim]: (I + A)^-T to_end K
  const float* starts;  // S of every chunk [chunks, value_heads, key_dim, value_dim]
  float* ends;          // R of every chunk but the last ones of sequences
  bool with_initial;
  Rows<T> d_o;
  Gradients<T> to;
};

template <class T>
__global__ void __launch_bounds__(tile_threads)
    solve_gradients_kernel(const Rule<T> rule, const BackwardTensors<T> g) {
  __shared__ Operands operands;
  __shared__ HeadTokens t;
  __shared__ PairTile pairs;
  const HeadPart<T> part = part_of_block(rule);
  if (part.at.n == 0) return;
  block_load_tokens(t, rule, g.to.inverses, part.at, part.head);
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
    block_load_tokens(t, rule, g.to.inverses, part.at, head);
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

struct HeadTiles {
  Operands operands;
  PairTile G, X;
  HeadTokens t;
  TokenSums sums;
};

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
  block_load_tokens(t, rule, g.to.inverses, part.at, part.head);
  const std::int64_t chunk = blockIdx.x / rule.value_heads;
  const UnitRows<T> Q = part.Q(t), K = part.K(t);
  const Matrix<T> V = part.values(rule.v), dO = part.values(g.d_o), dv = part.values(g.to.dv);
  const Matrix<float> U = part.of_values(g.U), Z = part.of_values(g.Z), dQ = part.of_keys(g.to.dQ),
                      dK = part.of_keys(g.to.dK), S = part.state(g.starts, chunk),
                      R = part.state(g.ends, chunk);
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
  if (threadIdx.x < warp_threads) finish_tokens(rule, g.to, part, t, sums, across);
}

void backward(const DeltaRuleProblem& problem, const DeltaRuleGradients& gradients, const Tensor& d_o,
              const Tensor& chunk_starts) {
  const DeltaRuleOptions& options = problem.options;
  const std::int64_t tokens = d_o.rows();
  if (problem.chunks.count == 0 || tokens == 0) return;
  if (delta_rule_on_tensor_cores(d_o.device(), d_o.dtype(), options) && tensor_core_backward_fits())
    return tensor_core_backward(problem, gradients, d_o, chunk_starts);
  const auto working = [&](std::int64_t dim) {
    return Tensor::empty({tokens, options.value_heads * dim}, DType::f32, d_o.device());
  };
  const Tensor U = working(options.value_dim), Z = working(options.value_dim), Y = working(options.key_dim),
               dQ = working(options.key_dim), dK = working(options.key_dim);
  const Tensor ends = Tensor::empty(chunk_starts.shape(), DType::f32, d_o.device());
  visit_storage("gated_delta_rule", d_o.dtype(), [&]<class T>(TypeTag<T>) {
    const Rule<T> rule(problem);
    const Tensor inverses = form_inverses(rule, problem.q, problem.k);
    const BackwardTensors<T> g{.U = rows_of<float>(U),
                               .Z = rows_of<float>(Z),
                               .Y = rows_of<float>(Y),
                               .starts = data_of<float>(chunk_starts),
                               .ends = data_of<float>(ends),
                               .with_initial = problem.initial_state.defined(),
                               .d_o = rows_of<T>(d_o),
                               .to = gradients_of<T>(gradients, inverses, dQ, dK)};
    launch("gated_delta_rule solve gradients", solve_gradients_kernel<T>, head_blocks(rule), tile_threads,
           rule, g);
    launch("gated_delta_rule state gradients", state_gradients_kernel<T>, walk_blocks(rule), tile_threads,
           rule, g);
    launch_shared("gated_delta_rule head gradients", head_gradients_kernel<T>, head_blocks(rule),
                  tile_threads, sizeof(HeadTiles), rule, g);
    add_value_heads(rule, g.to, problem.q, problem.k, gradients);
  });
}

const Provide provided(delta_rule_chunked_backward, backward);

}  // namespace
}  // namespace nemocube::cuda
