#include "ops/ssd_scan/ssd_scan_tile.cuh"

// Backward in four kernels: each chunk's part of the gradient of the state at its start; the gradients of the
// states at the ends of chunks, last chunk first; for each chunk and head the gradients of x, dt_raw and the
// parameters; for each chunk and group those of B and C, summed over the heads in their order.
namespace nemocube::cuda {
namespace {

using namespace ssd;

/// In: each chunk's part of the gradient of the state at its start (not of the first chunks of sequences).
/// Out: the gradient of the state at its end.
template <int N, class T>
__global__ void __launch_bounds__(pass_threads)
    pass_gradients_kernel(const Scan<T> scan, float* gradients, const float* whole) {
  for_own_state<N>(scan, [&](std::int64_t sequence, int head, std::int64_t element) {
    const auto place = [&](std::int64_t c) {
      return gradients + (c * scan.heads + head) * scan.state_elements() + element;
    };
    const std::int64_t begin = scan.first_chunk[sequence], end = scan.first_chunk[sequence + 1];
    const auto own_part = [&](std::int64_t c) {
      return c > begin ? Pack<float, N>::load(place(c), N) : Pack<float, N>();
    };
    Pack<float, N> now, added = own_part(end - 1);
    for (std::int64_t c = end - 1; c >= begin; --c) {
      const Pack<float, N> next = own_part(c - 1);
      now.store(place(c), N);
      const float decay = whole[c * scan.heads + head];
      float r[N], v[N];
      now.read(r);
      added.read(v);
#pragma unroll
      for (int i = 0; i < N; ++i) r[i] = decay * r[i] + v[i];
      now = Pack<float, N>::of(r);
      added = next;
    }
  });
}

template <class T>
struct BackwardTensors {
  Rows<T> dy;
  const float *starts, *end_gradients;  // H and R of every chunk, [chunks, heads, head_dim, state]
  bool with_initial;
  Rows<T> dx, ddt_raw, dB, dC;
  float *dA_log, *dD, *ddt_bias;  // [chunks, heads]
};

/// The sums over rows of a tile: those of the thread's elements, then those of the 16 threads of the rows.
/// Each of them gets the four sums.
__device__ void add_up_rows(float (&of_row)[own]) {
#pragma unroll
  for (int i = 0; i < own; ++i) of_row[i] = warp_sum<16>(of_row[i]);
}

/// The sum over the block, for thread 0. `parts` has an element for each warp.
__device__ float block_sum(float x, float (&parts)[tile_threads / warp_threads]) {
  x = warp_sum(x);
  if (threadIdx.x % warp_threads == 0) parts[threadIdx.x / warp_threads] = x;
  __syncthreads();
  float sum = 0;
  for (const float part : parts) sum += part;
  return sum;
}

/// What each token's da and ddt are summed from.
struct TokenSums {
  float crossing[tile];       // products between tokens of the chunk that cross to this token
  float through_start[tile];  // the term through the state at the start
  float through_end[tile];    // the term through the state at the end
  float ddt[tile];            // gradient of dt as the factor of x
  float skip[tile];           // x dy
  float parts[tile_threads / warp_threads];
};

/// crossing[t] = the sum of W[s, l] over s < t <= l; W[s, l] is zero for l < s. Overwrites W.
__device__ void sum_crossing(float (&crossing)[tile], PairTile& W) {
  const int t = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (t < tile) {
    float above = 0;
    for (int s = 0; s < tile; ++s) {
      const float w = W.rows[s][t];
      W.rows[s][t] = s <= t ? above : 0;
      above += w;
    }
  }
  __syncthreads();
  constexpr int of_row = tile_threads / tile;
  float sum = 0;
  for (int l = t % of_row; l < tile; l += of_row) sum += W.rows[t / of_row][l];
  sum = warp_sum<of_row>(sum);
  if (t % of_row == 0) crossing[t / of_row] = sum;
  __syncthreads();
}

/// Gradients of dt_raw, A_log, dt_bias and D of one head, from `sums` and `across`, which crosses the whole
/// chunk.
template <class T>
__device__ void finish_decays(const Scan<T>& scan, const BackwardTensors<T>& g, const HeadPart<T>& part,
                              const Decays& d, const TokenSums& sums, float across) {
  constexpr int own_tokens = tile / warp_threads;
  const float rate = scan.rate(part.head);
  float decay = 0, bias = 0, skip = 0;
#pragma unroll
  for (int i = 0; i < own_tokens; ++i) {
    const int t = static_cast<int>(threadIdx.x) + i * warp_threads;
    if (t >= part.at.n) continue;
    float da = sums.crossing[t] + across, ended = 0, started = 0;
    for (int s = 0; s < t; ++s) ended += sums.through_end[s];
    for (int l = part.at.n - 1; l >= t; --l) started += sums.through_start[l];
    da += ended + started;
    const float v = d.raw[t], soft = softplus(v);
    const bool inside = soft >= scan.dt_min && soft <= scan.dt_max;
    const float ddt = inside ? (sums.ddt[t] + rate * da) * softplus_grad(v) : 0;
    g.ddt_raw.row(part.at.t0 + t)[part.head] = rounded<T>(ddt);
    decay += da * d.dt[t];
    bias += ddt;
    skip += sums.skip[t];
  }
  decay = warp_sum(decay);
  bias = warp_sum(bias);
  skip = warp_sum(skip);
  if (threadIdx.x == 0) {
    g.dA_log[blockIdx.x] = rate * decay;
    g.ddt_bias[blockIdx.x] = bias;
    g.dD[blockIdx.x] = skip;
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads)
    head_gradients_kernel(const Scan<T> scan, const BackwardTensors<T> g) {
  __shared__ Operands operands;
  __shared__ Decays d;
  __shared__ PairTile pairs;
  __shared__ TokenSums sums;
  const HeadPart<T> part(scan);
  if (part.at.n == 0) return;
  const Matrix<T> x = part.channels(scan, scan.x), dy = part.channels(scan, g.dy);
  const Matrix<T> B = part.shared(scan, scan.B), C = part.shared(scan, scan.C);
  const Matrix<float> H = state_of(g.starts, scan, part.chunk, part.head);
  const Matrix<float> R = state_of(g.end_gradients, scan, part.chunk, part.head);
  const bool has_start = g.with_initial || !part.at.first, has_end = !part.at.last;
  block_load_decays(d, scan, part.at, part.head);

  // Between tokens: row s, column l.
  float masked[own][own] = {}, W[own][own] = {}, direct[own] = {};
  add_product<Order::depth, Order::depth>(masked, operands, scan.state, B, C);
  add_product<Order::depth, Order::depth>(W, operands, scan.head_dim, x, dy);  // the scores
  for_own([&](int i, int j, int s, int l) {
    const float product = masked[i][j], score = W[i][j];
    if (s == l) sums.skip[s] = score;
    const float e = l >= s ? d.between(s, l) : 0;
    masked[i][j] = l >= s ? product * e : 0;
    direct[i] += l >= s ? masked[i][j] * score : 0;
    W[i][j] = l >= s ? score * e * d.dt[s] * product : 0;
  });
  pairs.store(W);
  sum_crossing(sums.crossing, pairs);
  pairs.store(masked);

  // Q = to_end (B R^T) + (B C^T * E) dY, and C H^T
  const float skip = scan.D[part.head];
  float through_start[own] = {}, through_end[own] = {};
  for (int p0 = 0; p0 < scan.head_dim; p0 += tile) {
    float q[own][own] = {};
    if (has_start) {
      add_product<Order::depth, Order::depth>(q, operands, scan.state, C,
                                              [&](int p, int n) { return H(p0 + p, n); });
      for_own([&](int i, int j, int l, int p) {
        through_start[i] += q[i][j] * d.from_start[l] * dy(l, p0 + p);
        q[i][j] = 0;
      });
    }
    if (has_end) {
      add_product<Order::depth, Order::depth>(q, operands, scan.state, B,
                                              [&](int p, int n) { return R(p0 + p, n); });
      for_own([&](int i, int j, int s, int p) {
        q[i][j] *= d.to_end[s];
        through_end[i] += q[i][j] * x(s, p0 + p);
      });
    }
    __syncthreads();  // `pairs` is complete
    add_product<Order::depth, Order::side>(
        q, operands, part.at.n, [&](int s, int l) { return pairs.rows[s][l]; },
        [&](int p, int l) { return dy(l, p0 + p); });
    for_own([&](int i, int j, int s, int p) {
      if (s < part.at.n && p0 + p < scan.head_dim)
        g.dx.row(part.at.t0 + s)[std::int64_t{part.head} * scan.head_dim + p0 + p] =
            rounded<T>(d.dt[s] * q[i][j] + skip * dy(s, p0 + p));
    });
  }

  add_up_rows(direct);
  add_up_rows(through_start);
  add_up_rows(through_end);
  if (threadIdx.x % 16 == 0)
#pragma unroll
    for (int i = 0; i < own; ++i) {
      const int t = static_cast<int>(threadIdx.x) / 16 * own + i;
      sums.ddt[t] = direct[i] + through_end[i];
      sums.through_start[t] = through_start[i];
      sums.through_end[t] = d.dt[t] * through_end[i];
    }
  float across = 0;
  if (has_start && has_end)
    for (std::int64_t k = threadIdx.x; k < scan.state_elements(); k += tile_threads)
      across += R.start[k] * H.start[k];
  across = d.whole * block_sum(across, sums.parts);
  if (threadIdx.x < warp_threads) finish_decays(scan, g, part, d, sums, has_start && has_end ? across : 0);
}

template <class T>
__global__ void __launch_bounds__(tile_threads)
    group_gradients_kernel(const Scan<T> scan, const BackwardTensors<T> g) {
  __shared__ Operands operands;
  __shared__ Decays d;
  __shared__ PairTile P;
  const std::int64_t chunk = blockIdx.x / scan.groups;
  const int group = static_cast<int>(blockIdx.x % scan.groups), group_heads = scan.group_heads();
  const ChunkPlace at = place_of(scan, chunk);
  if (at.n == 0) return;
  const std::int64_t shared_col = std::int64_t{group} * scan.state;
  const Matrix<T> B = tokens_of(scan.B, at, shared_col, scan.state),
                  C = tokens_of(scan.C, at, shared_col, scan.state);
  const bool has_start = g.with_initial || !at.first, has_end = !at.last;
  const auto channels = [&](const Rows<T>& rows, int head) {
    return tokens_of(rows, at, std::int64_t{head} * scan.head_dim, scan.head_dim);
  };

  // P = (X dY^T * E) dt, summed over heads: row s, column l
  float pairs[own][own] = {};
  for (int head = group * group_heads; head < (group + 1) * group_heads; ++head) {
    block_load_decays(d, scan, at, head);
    float scores[own][own] = {};
    add_product<Order::depth, Order::depth>(scores, operands, scan.head_dim, channels(scan.x, head),
                                            channels(g.dy, head));
    for_own([&](int i, int j, int s, int l) {
      if (l >= s) pairs[i][j] += scores[i][j] * d.between(s, l) * d.dt[s];
    });
  }
  P.store(pairs);

  for (int n0 = 0; n0 < scan.state; n0 += tile) {
    float dB[own][own] = {}, dC[own][own] = {};
    if (has_start || has_end)
      for (int head = group * group_heads; head < (group + 1) * group_heads; ++head) {
        block_load_decays(d, scan, at, head);
        const Matrix<T> x = channels(scan.x, head), dy = channels(g.dy, head);
        const Matrix<float> H = state_of(g.starts, scan, chunk, head),
                            R = state_of(g.end_gradients, scan, chunk, head);
        if (has_start)
          add_product<Order::depth, Order::side>(
              dC, operands, scan.head_dim, [&](int l, int p) { return d.from_start[l] * dy(l, p); },
              [&](int n, int p) { return H(p, n0 + n); });
        if (has_end)
          add_product<Order::depth, Order::side>(
              dB, operands, scan.head_dim, [&](int s, int p) { return d.to_end[s] * d.dt[s] * x(s, p); },
              [&](int n, int p) { return R(p, n0 + n); });
      }
    __syncthreads();  // P is complete
    add_product<Order::depth, Order::side>(
        dB, operands, at.n, [&](int s, int l) { return P.rows[s][l]; },
        [&](int n, int l) { return C(l, n0 + n); });
    add_product<Order::side, Order::side>(
        dC, operands, at.n, [&](int l, int s) { return P.rows[s][l]; },
        [&](int n, int s) { return B(s, n0 + n); });
    for_own([&](int i, int j, int t, int n) {
      if (t >= at.n || n0 + n >= scan.state) return;
      g.dB.row(at.t0 + t)[shared_col + n0 + n] = rounded<T>(dB[i][j]);
      g.dC.row(at.t0 + t)[shared_col + n0 + n] = rounded<T>(dC[i][j]);
    });
  }
}

template <int N, class T>
void pass_gradients(const Scan<T>& scan, float* gradients, const float* whole) {
  launch("ssd_scan state gradients", pass_gradients_kernel<N, T>,
         pass_blocks<N>(scan.sequences, scan.heads, scan.state_elements()), pass_threads, scan, gradients,
         whole);
}

void backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
              const Tensor& chunk_starts) {
  if (ssd_on_tensor_cores(dy.device(), dy.dtype(), problem.options))
    return tensor_core_backward(problem, gradients, dy, chunk_starts);
  const std::int64_t chunks = problem.chunks.count;
  if (chunks == 0) return;
  const Tensor ends = Tensor::empty(chunk_starts.shape(), DType::f32, dy.device());
  const Tensor whole_tensor = Tensor::empty(gradients.A_log.shape(), DType::f32, dy.device());
  visit_storage("ssd_scan", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const Scan<T> scan(problem);
    const BackwardTensors<T> g{.dy = rows_of<T>(dy),
                               .starts = data_of<float>(chunk_starts),
                               .end_gradients = data_of<float>(ends),
                               .with_initial = problem.initial_state.defined(),
                               .dx = rows_of<T>(gradients.x),
                               .ddt_raw = rows_of<T>(gradients.dt_raw),
                               .dB = rows_of<T>(gradients.B),
                               .dC = rows_of<T>(gradients.C),
                               .dA_log = data_of<float>(gradients.A_log),
                               .dD = data_of<float>(gradients.D),
                               .ddt_bias = data_of<float>(gradients.dt_bias)};
    float* const end = data_of<float>(ends);
    float* const whole = data_of<float>(whole_tensor);
    launch("ssd_scan chunk gradients", chunk_states_kernel<true, T>,
           chunk_blocks(chunks, scan.heads, state_tiles(scan)), tile_threads, scan, g.dy, scan.C, end, whole,
           true);
    scan.state_elements() % 4 == 0 ? pass_gradients<4>(scan, end, whole)
                                   : pass_gradients<1>(scan, end, whole);
    launch("ssd_scan head gradients", head_gradients_kernel<T>, chunk_blocks(chunks, scan.heads),
           tile_threads, scan, g);
    launch("ssd_scan group gradients", group_gradients_kernel<T>, chunk_blocks(chunks, scan.groups),
           tile_threads, scan, g);
  });
}

const Provide provided(ssd_chunked_backward, backward);

}  // namespace
}  // namespace nemocube::cuda
