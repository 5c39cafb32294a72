#include "ops/gated_delta_rule/gated_delta_rule.cuh"

// Forward in four kernels: factors that normalise q and k; for each chunk and head what the triangular system
// gives for V and for K, whatever the state; the states, one chunk after the other; the outputs of each
// chunk. All but the third have blocks for each chunk and head, so that few sequences occupy the device too.
namespace nemocube::cuda {
namespace {

using namespace delta_rule;

template <class T>
struct ForwardTensors {
  Rows<float> inverses;
  Rows<float> U;  // [T, value_heads * value_dim]: (I + A)^-1 beta V, later U
  Rows<float> W;  // [T, value_heads * key_dim]: (I + A)^-1 beta from_start K
  float* starts;  // [chunks, value_heads, key_dim, value_dim]
  const float* initial;
  float* final;
  Rows<T> o;
};

template <class T>
__global__ void __launch_bounds__(tile_threads) solve_kernel(const Rule<T> rule, const ForwardTensors<T> f) {
  __shared__ Operands operands;
  __shared__ HeadTokens t;
  __shared__ PairTile inverse;
  const HeadPart<T> part = part_of_block(rule);
  if (part.at.n == 0) return;
  block_load_tokens(t, rule, f.inverses, part.at, part.head);
  form_inverse(inverse, operands, part, t);
  __syncthreads();
  const auto solve = [&](const Matrix<float>& to, auto&& element) {
    for (int c0 = 0; c0 < to.cols; c0 += tile) {
      float sums[own][own] = {};
      add_product<Order::depth, Order::side>(
          sums, operands, part.at.n, [&](int l, int s) { return inverse.rows[l][s]; },
          [&](int c, int s) { return element(s, c0 + c); });
      for_own([&](int i, int j, int l, int c) { set_element(to, l, c0 + c, sums[i][j]); });
    }
  };
  const Matrix<T> V = part.values(rule.v);
  solve(part.of_values(f.U), [&](int s, int c) { return t.beta[s] * V(s, c); });
  if (part.at.first && !f.initial) return;  // nobody reads W
  const UnitRows<T> K = part.K(t);
  solve(part.of_keys(f.W), [&](int s, int c) { return t.beta[s] * t.from_start[s] * K(s, c); });
}

/// A block has one sequence and head, and 64 columns of the state.
template <class T>
__global__ void __launch_bounds__(tile_threads) states_kernel(const Rule<T> rule, const ForwardTensors<T> f) {
  __shared__ Operands operands;
  __shared__ HeadTokens t;
  __shared__ PairTile U;
  const std::int64_t sequence = blockIdx.x / rule.value_heads;
  const int head = static_cast<int>(blockIdx.x % rule.value_heads), v0 = static_cast<int>(blockIdx.y) * tile;
  const std::int64_t begin = rule.first_chunk[sequence], end = rule.first_chunk[sequence + 1];
  const auto state_before = [&](std::int64_t chunk) {
    const HeadPart<T> part{{}, head, rule};
    return chunk < end ? part.state(f.starts, chunk) : part.state(f.final, sequence);
  };
  if (begin < end || f.final)
    for (int i0 = 0; i0 < rule.key_dim; i0 += tile)
      for_own([&](int, int, int i, int v) {
        const HeadPart<T> part{{}, head, rule};
        set_element(state_before(begin), i0 + i, v0 + v,
                    f.initial ? part.state(f.initial, sequence)(i0 + i, v0 + v) : 0);
      });
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    const HeadPart<T> part{place_of(rule, sequence, chunk), head, rule};
    const Matrix<float> S = state_before(chunk), W = part.of_keys(f.W), rows = part.of_values(f.U);
    block_load_tokens(t, rule, f.inverses, part.at, head);
    float u[own][own] = {};
    if (chunk > begin || f.initial)
      add_product<Order::depth, Order::side>(u, operands, rule.key_dim, W,
                                             [&](int v, int i) { return S(i, v0 + v); });
    for_own([&](int i, int j, int l, int v) {
      u[i][j] = rows(l, v0 + v) - u[i][j];
      set_element(rows, l, v0 + v, u[i][j]);
    });
    if (chunk + 1 == end && !f.final) return;
    U.store(u);
    __syncthreads();
    const UnitRows<T> K = part.K(t);
    const Matrix<float> next = state_before(chunk + 1);
    for (int i0 = 0; i0 < rule.key_dim; i0 += tile) {
      float sums[own][own] = {};
      add_product<Order::side, Order::side>(
          sums, operands, part.at.n, [&](int i, int l) { return t.to_end[l] * K(l, i0 + i); },
          [&](int v, int l) { return U.rows[l][v]; });
      for_own([&](int i, int j, int p, int v) {
        set_element(next, i0 + p, v0 + v, t.whole * S(i0 + p, v0 + v) + sums[i][j]);
      });
    }
    // Reads of the next state come after the barriers of the next tokens.
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads)
    outputs_kernel(const Rule<T> rule, const ForwardTensors<T> f) {
  __shared__ Operands operands;
  __shared__ HeadTokens t;
  __shared__ PairTile P;
  const HeadPart<T> part = part_of_block(rule);
  if (part.at.n == 0) return;
  block_load_tokens(t, rule, f.inverses, part.at, part.head);
  const UnitRows<T> Q = part.Q(t), K = part.K(t);
  const Matrix<float> S = part.state(f.starts, blockIdx.x / rule.value_heads), U = part.of_values(f.U);
  const Matrix<T> o = part.values(f.o);

  float sums[own][own] = {};
  add_product<Order::depth, Order::depth>(sums, operands, rule.key_dim, Q, K);
  for_own([&](int i, int j, int l, int s) { sums[i][j] = s <= l ? sums[i][j] * t.between(s, l) : 0; });
  P.store(sums);
  for (int v0 = 0; v0 < rule.value_dim; v0 += tile) {
    float out[own][own] = {};
    if (f.initial || !part.at.first)
      add_product<Order::depth, Order::side>(out, operands, rule.key_dim, Q,
                                             [&](int v, int i) { return S(i, v0 + v); });
    for_own([&](int i, int j, int l, int) { out[i][j] *= t.from_start[l]; });
    __syncthreads();  // P is complete
    add_product<Order::depth, Order::side>(
        out, operands, part.at.n, [&](int l, int s) { return P.rows[l][s]; },
        [&](int v, int s) { return U(s, v0 + v); });
    for_own([&](int i, int j, int l, int v) { set_element(o, l, v0 + v, out[i][j]); });
  }
}

void forward(const DeltaRuleProblem& problem, const Tensor& o, const DeltaRuleStates& states) {
  const DeltaRuleOptions& options = problem.options;
  if (delta_rule_on_tensor_cores(o.device(), o.dtype(), options))
    return tensor_core_forward(problem, o, states);
  const std::int64_t tokens = o.rows();
  const auto working = [&](const Shape& shape) { return Tensor::empty(shape, DType::f32, o.device()); };
  const Tensor starts =
      states.chunk_starts
          ? states.chunk_starts
          : working({problem.chunks.count, options.value_heads, options.key_dim, options.value_dim});
  const Tensor U = working({tokens, options.value_heads * options.value_dim}),
               W = working({tokens, options.value_heads * options.key_dim});
  visit_storage("gated_delta_rule", o.dtype(), [&]<class T>(TypeTag<T>) {
    const Rule<T> rule(problem);
    if (rule.sequences == 0) return;
    const Tensor inverses = form_inverses(rule, problem.q, problem.k);
    const ForwardTensors<T> f{
        .inverses = rows_of<float>(inverses),
        .U = rows_of<float>(U),
        .W = rows_of<float>(W),
        .starts = data_of<float>(starts),
        .initial = problem.initial_state ? data_of<float>(problem.initial_state) : nullptr,
        .final = states.final ? data_of<float>(states.final) : nullptr,
        .o = rows_of<T>(o)};
    if (rule.chunks > 0)
      launch("gated_delta_rule solve", solve_kernel<T>, head_blocks(rule), tile_threads, rule, f);
    launch("gated_delta_rule states", states_kernel<T>, walk_blocks(rule), tile_threads, rule, f);
    if (rule.chunks > 0)
      launch("gated_delta_rule outputs", outputs_kernel<T>, head_blocks(rule), tile_threads, rule, f);
  });
}

const Provide provided(delta_rule_chunked_forward, forward);

}  // namespace
}  // namespace nemocube::cuda
