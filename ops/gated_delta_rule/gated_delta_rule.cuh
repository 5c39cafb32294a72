#pragma once
#include <cmath>
#include <cstdint>

#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/block_tile.cuh"
#include "ops/decays.cuh"
#include "ops/gated_delta_rule/gated_delta_rule_kernels.h"

/// Parts that the kernels of the rule share. The names are those of gated_delta_rule_chunks_cpu.h.
namespace nemocube::cuda::delta_rule {

using namespace block_tile;
using namespace decays;

static_assert(tile == delta_rule_longest_chunk);

/// The operands on the device.
template <class T>
struct Rule {
  Rows<T> q, k, v, a, b;
  const float *A_log, *dt_bias;
  const std::int64_t *offsets, *first_chunk;  // [sequences + 1]
  std::int64_t sequences, chunks;
  int key_heads, value_heads, key_dim, value_dim, chunk_length;
  float q_scale;

  explicit Rule(const DeltaRuleProblem& p)
      : q(rows_of<T>(p.q)),
        k(rows_of<T>(p.k)),
        v(rows_of<T>(p.v)),
        a(rows_of<T>(p.a)),
        b(rows_of<T>(p.b)),
        A_log(data_of<float>(p.A_log)),
        dt_bias(data_of<float>(p.dt_bias)),
        offsets(data_of<std::int64_t>(p.sequences.offsets)),
        first_chunk(data_of<std::int64_t>(p.chunks.first)),
        sequences(p.sequences.count()),
        chunks(p.chunks.count),
        key_heads(static_cast<int>(p.options.key_heads)),
        value_heads(static_cast<int>(p.options.value_heads)),
        key_dim(static_cast<int>(p.options.key_dim)),
        value_dim(static_cast<int>(p.options.value_dim)),
        chunk_length(static_cast<int>(p.chunks.length)),
        q_scale(1 / std::sqrt(static_cast<float>(p.options.key_dim))) {}

  __host__ __device__ int own_heads() const { return value_heads / key_heads; }
  /// Elements of one head's state.
  __host__ __device__ std::int64_t state_elements() const { return std::int64_t{key_dim} * value_dim; }
  __device__ float rate(int head) const { return -expf(A_log[head]); }
};

/// The tokens [t0, t0 + n) of a chunk. A chunk beyond the last sequence has none: n = 0.
struct ChunkPlace {
  std::int64_t t0;
  int n;
  bool first, last;  // of its sequence
};

template <class T>
__device__ ChunkPlace place_of(const Rule<T>& rule, std::int64_t sequence, std::int64_t chunk) {
  const std::int64_t first = rule.first_chunk[sequence];
  const std::int64_t t0 = rule.offsets[sequence] + (chunk - first) * rule.chunk_length;
  const std::int64_t rest = rule.offsets[sequence + 1] - t0;
  return {t0, static_cast<int>(rest < rule.chunk_length ? rest : rule.chunk_length), chunk == first,
          chunk + 1 == rule.first_chunk[sequence + 1]};
}
template <class T>
__device__ ChunkPlace place_of(const Rule<T>& rule, std::int64_t chunk) {
  if (chunk >= rule.first_chunk[rule.sequences]) return {0, 0, false, false};
  return place_of(rule, sequence_of(rule.first_chunk, rule.sequences, chunk), chunk);
}

/// What the tokens of a chunk have in one head, in shared memory. Tokens beyond the last change no state.
struct HeadTokens {
  float a[tile];           // with dt_bias
  float dt[tile];          // softplus of a
  float beta[tile];        // sigmoid of b
  float rest[tile];        // 1 - beta
  LongSum sum[tile];       // g_0 + .. + g_l
  float from_start[tile];  // e^(g_0 + .. + g_l)
  float to_end[tile];      // e^(g_(l+1) + .. + g_(n-1))
  float q[tile], k[tile];  // factors that normalise rows of q and k
  float whole;             // e^(g_0 + .. + g_(n-1))

  __device__ float between(int from, int to) const { return decay_between(sum[to], sum[from]); }
};

/// One warp fills `t`. `inverses` has 1 / sqrt(sum x^2 + eps) of the rows of q, then of k.
template <class T>
__device__ void warp_load_tokens(HeadTokens& t, const Rule<T>& rule, const Rows<float>& inverses,
                                 const ChunkPlace& at, int head) {
  constexpr int own_tokens = tile / warp_threads;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads, key_head = head / rule.own_heads();
  const float rate = rule.rate(head), bias = rule.dt_bias[head];
  LongSum sums[own_tokens] = {};
#pragma unroll
  for (int i = 0; i < own_tokens; ++i) {
    const int l = lane * own_tokens + i;
    float a = 0, b = 0, dt = 0, q = 0, k = 0;
    if (l < at.n) {
      a = to_float(rule.a.row(at.t0 + l)[head]) + bias;
      b = to_float(rule.b.row(at.t0 + l)[head]);
      dt = softplus(a);
      sums[i] = exact_product(dt, rate);
      const float* const row = inverses.row(at.t0 + l);
      q = row[key_head] * rule.q_scale;
      k = row[rule.key_heads + key_head];
    }
    if (i > 0) sums[i] = sums[i - 1] + sums[i];
    t.a[l] = a;
    t.dt[l] = dt;
    t.beta[l] = l < at.n ? 1 / (1 + expf(-b)) : 0;
    t.rest[l] = 1 / (1 + expf(b));
    t.q[l] = q;
    t.k[l] = k;
  }
  const LongSum through = running_sum(sums[own_tokens - 1]);
  LongSum before{__shfl_up_sync(whole_warp, through.high, 1), __shfl_up_sync(whole_warp, through.low, 1)};
  if (lane == 0) before = {};
  const LongSum end{__shfl_sync(whole_warp, through.high, warp_threads - 1),
                    __shfl_sync(whole_warp, through.low, warp_threads - 1)};
#pragma unroll
  for (int i = 0; i < own_tokens; ++i) {
    const int l = lane * own_tokens + i;
    const LongSum sum = before + sums[i];
    t.sum[l] = sum;
    t.from_start[l] = expf(sum.high);
    t.to_end[l] = expf(difference(end, sum));
  }
  if (lane == 0) t.whole = expf(end.high);
}
/// All threads: sets `t`, which nobody may read any more.
template <class T>
__device__ void block_load_tokens(HeadTokens& t, const Rule<T>& rule, const Rows<float>& inverses,
                                  const ChunkPlace& at, int head) {
  __syncthreads();
  if (threadIdx.x < warp_threads) warp_load_tokens(t, rule, inverses, at, head);
  __syncthreads();
}

/// Columns [col0, col0 + cols) of a chunk's tokens.
template <class T>
__device__ Matrix<T> tokens_of(const Rows<T>& rows, const ChunkPlace& at, std::int64_t col0, int cols) {
  return {rows.row(at.t0) + col0, rows.stride, at.n, cols};
}
/// Rows of q or k of a chunk, normalised: element (l, i).
template <class T>
struct UnitRows {
  Matrix<T> rows;
  const float* factors;
  __device__ float operator()(int l, int i) const { return rows(l, i) * factors[l]; }
};

/// A chunk and head, as the rows of a block's operands.
template <class T>
struct HeadPart {
  ChunkPlace at;
  int head;
  const Rule<T>& rule;

  __device__ Matrix<T> values(const Rows<T>& rows) const {
    return tokens_of(rows, at, std::int64_t{head} * rule.value_dim, rule.value_dim);
  }
  __device__ UnitRows<T> Q(const HeadTokens& t) const { return {key_rows(rule.q), t.q}; }
  __device__ UnitRows<T> K(const HeadTokens& t) const { return {key_rows(rule.k), t.k}; }
  /// Of working memory with rows for each token: value_dim or key_dim elements for each value head.
  __device__ Matrix<float> of_values(const Rows<float>& rows) const {
    return tokens_of(rows, at, std::int64_t{head} * rule.value_dim, rule.value_dim);
  }
  __device__ Matrix<float> of_keys(const Rows<float>& rows) const {
    return tokens_of(rows, at, std::int64_t{head} * rule.key_dim, rule.key_dim);
  }
  /// The head's state at `index` of a tensor [.., value_heads, key_dim, value_dim].
  __device__ Matrix<float> state(const float* states, std::int64_t index) const {
    return {states + (index * rule.value_heads + head) * rule.state_elements(), rule.value_dim, rule.key_dim,
            rule.value_dim};
  }

 private:
  __device__ Matrix<T> key_rows(const Rows<T>& rows) const {
    return tokens_of(rows, at, std::int64_t{head / rule.own_heads()} * rule.key_dim, rule.key_dim);
  }
};
/// The chunk and head of a block of a grid with one for each.
template <class T>
__device__ HeadPart<T> part_of_block(const Rule<T>& rule) {
  return {place_of(rule, std::int64_t{blockIdx.x} / rule.value_heads),
          static_cast<int>(blockIdx.x % rule.value_heads), rule};
}
template <class T>
unsigned head_blocks(const Rule<T>& rule) {
  return blocks_for(rule.chunks * rule.value_heads, 1);
}

/// Blocks that walk along a sequence, for each head and 64 columns of its state.
template <class T>
dim3 walk_blocks(const Rule<T>& rule) {
  const int tiles = tiles_of(rule.value_dim);
  require(tiles <= 65535, "gated_delta_rule on cuda: want at most 65535 tiles of a state, got ", tiles);
  return {blocks_for(rule.sequences * rule.value_heads, 1), static_cast<unsigned>(tiles)};
}

/// Sets an element of a matrix that the kernel writes, if there is one.
template <class T>
__device__ void set_element(const Matrix<T>& to, int row, int col, float value) {
  if (row < to.rows && col < to.cols) const_cast<T*>(to.start)[row * to.stride + col] = rounded<T>(value);
}

/// Stores the thread's elements of a tile, rows as columns.
__device__ inline void store_transposed(PairTile& to, const float (&values)[own][own]) {
  const int row = static_cast<int>(threadIdx.x) / 16 * own, col = static_cast<int>(threadIdx.x) % 16 * own;
#pragma unroll
  for (int j = 0; j < own; ++j)
    *reinterpret_cast<float4*>(&to.rows[col + j][row]) =
        make_float4(values[0][j], values[1][j], values[2][j], values[3][j]);
}

/// In: the unit lower triangular matrix I + A transposed, with zeros below its diagonal. Out: (I + A)^-1. All
/// tile_threads; between barriers. Only the first n rows of A differ from zero.
///
/// Blocks of 16 x 16. Those on the diagonal are inverted row by row; each of their columns has four
/// threads. Then those below, diagonal by diagonal: of block (i, j) the sum over j <= k < i of A_ik times
/// the inverse's block (k, j), times minus the inverse's block (i, i). A stays transposed above the
/// diagonal until the end.
__device__ inline void invert(PairTile& matrix, int n) {
  constexpr int size = 16, of_column = tile_threads / tile;
  const int thread = static_cast<int>(threadIdx.x), column = thread / of_column, sub = thread % of_column,
            column0 = column / size * size;
  for (int i = 1; i < size; ++i) {
    const int l = column0 + i;
    float sum = 0;
    for (int s = column + sub; s < l; s += of_column) sum += matrix.rows[s][l] * matrix.rows[s][column];
    sum = warp_sum<of_column>(sum);
    if (sub == 0 && column < l) matrix.rows[l][column] = -sum;
    __syncwarp();
  }
  __syncthreads();
  const int r = thread / size, c = thread % size, blocks = (n + size - 1) / size;
  static_assert(tile_threads == size * size);
  if (c > r)
    for (int i = 0; i < tile; i += size) matrix.rows[i + r][i + c] = 0;
  __syncthreads();
  for (int distance = 1; distance < blocks; ++distance) {
    float sums[tile / size - 1] = {};
#pragma unroll
    for (int j = 0; j < tile / size - 1; ++j) {
      const int i = j + distance;
      if (i < blocks)
        for (int s = j * size; s < i * size; ++s)
          sums[j] += matrix.rows[s][i * size + r] * matrix.rows[s][j * size + c];
    }
#pragma unroll
    for (int j = 0; j < tile / size - 1; ++j)
      if (j + distance < blocks) matrix.rows[(j + distance) * size + r][j * size + c] = sums[j];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < tile / size - 1; ++j) {
      const int i = j + distance;
      sums[j] = 0;
      if (i < blocks)
#pragma unroll
        for (int s = 0; s < size; ++s)
          sums[j] += matrix.rows[i * size + r][i * size + s] * matrix.rows[i * size + s][j * size + c];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < tile / size - 1; ++j)
      if (j + distance < blocks) matrix.rows[(j + distance) * size + r][j * size + c] = -sums[j];
    __syncthreads();
  }
  for (int i = thread; i < tile * tile; i += tile_threads)
    if (i % tile > i / tile) matrix.rows[i / tile][i % tile] = 0;
}

/// Sets `inverse` to (I + A)^-1, with A the strictly lower part of beta (K K^T * D). All threads; others may
/// read it after the next barrier, and nobody may read it before the call.
template <class T>
__device__ void form_inverse(PairTile& inverse, Operands& operands, const HeadPart<T>& part,
                             const HeadTokens& t) {
  const UnitRows<T> K = part.K(t);
  float sums[own][own] = {};
  add_product<Order::depth, Order::depth>(sums, operands, part.rule.key_dim, K, K);
  for_own([&](int i, int j, int l, int s) {
    sums[i][j] = s < l ? t.beta[l] * sums[i][j] * t.between(s, l) : s == l ? 1 : 0;
  });
  store_transposed(inverse, sums);
  __syncthreads();
  invert(inverse, part.at.n);
}

constexpr int row_threads = 256, row_warps = row_threads / warp_threads;

/// Whether a warp can read a row of q or k as four neighbours for each thread.
template <class... Tensors>
bool rows_in_packs(std::int64_t key_dim, const Tensors&... tensors) {
  return key_dim <= 4 * warp_threads && key_dim % 4 == 0 && rows_aligned(tensors...);
}

/// The rows of q and k of a token, one after the other, those of q first. A warp has one of them.
template <class T>
struct KeyRow {
  std::int64_t token;
  int column;  // of 2 key_heads
  bool of_q;
  std::int64_t at;  // the row's first element among those of the token

  __device__ KeyRow(const Rule<T>& rule, std::int64_t index)
      : token(index / (2 * rule.key_heads)),
        column(static_cast<int>(index - token * (2 * rule.key_heads))),
        of_q(column < rule.key_heads),
        at(std::int64_t{of_q ? column : column - rule.key_heads} * rule.key_dim) {}
  __device__ const T* values(const Rule<T>& rule) const { return (of_q ? rule.q : rule.k).row(token) + at; }
};
__device__ inline std::int64_t row_of_warp() {
  return std::int64_t{blockIdx.x} * row_warps + threadIdx.x / warp_threads;
}

/// inverses[t] = 1 / sqrt(sum x^2 + eps) of the rows of q of a token, then of k.
template <bool packs, class T>
__global__ void __launch_bounds__(row_threads)
    inverses_kernel(const Rule<T> rule, const Rows<float> inverses, std::int64_t rows) {
  const std::int64_t index = row_of_warp();
  if (index >= rows) return;
  const KeyRow<T> row(rule, index);
  const T* const x = row.values(rule);
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  float sum = 0;
  if constexpr (packs) {
    float v[4];
    Pack<T, 4>::load(x + lane * 4, rule.key_dim - lane * 4).read(v);
    sum = v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
  } else {
    for (int i = lane; i < rule.key_dim; i += warp_threads) {
      const float v = to_float(x[i]);
      sum += v * v;
    }
  }
  sum = warp_sum(sum);
  if (lane == 0) inverses.row(row.token)[row.column] = 1 / sqrtf(sum + static_cast<float>(delta_rule_eps));
}

/// [T, 2 key_heads]
template <class T>
Tensor form_inverses(const Rule<T>& rule, const Tensor& q, const Tensor& k) {
  const Tensor inverses = Tensor::empty({q.rows(), 2 * rule.key_heads}, DType::f32, q.device());
  if (inverses.numel() > 0)
    launch("gated_delta_rule norms",
           rows_in_packs(rule.key_dim, q, k) ? inverses_kernel<true, T> : inverses_kernel<false, T>,
           blocks_for(inverses.numel(), row_warps), row_threads, rule, rows_of<float>(inverses),
           inverses.numel());
  return inverses;
}

/// The kernels on tensor cores, for what delta_rule_on_tensor_cores() says.
void tensor_core_forward(const DeltaRuleProblem& problem, const Tensor& o, const DeltaRuleStates& states);
/// Whether blocks of the device can have the shared memory that tensor_core_backward() wants. Where not, the
/// kernels for every size do its work.
bool tensor_core_backward_fits();
void tensor_core_backward(const DeltaRuleProblem& problem, const DeltaRuleGradients& gradients,
                          const Tensor& d_o, const Tensor& chunk_starts);

}  // namespace nemocube::cuda::delta_rule
