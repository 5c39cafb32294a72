#include "ops/ssd_scan/ssd_scan_tile.cuh"

// Forward in three kernels: the state that each chunk adds; the states at the starts of chunks, one chunk
// after the other; the outputs of each chunk. The first and the last have a block for each chunk and head, so
// that few sequences occupy the device too.
namespace nemocube::cuda {
namespace {

using namespace ssd;

/// In: the chunks' own states. Out: the states at their starts.
template <int N, class T>
__global__ void __launch_bounds__(pass_threads)
    pass_states_kernel(const Scan<T> scan, float* states, const float* whole, const float* initial,
                       float* final) {
  for_own_state<N>(scan, [&](std::int64_t sequence, int head, std::int64_t element) {
    const auto place = [&](float* of, std::int64_t index) {
      return of + (index * scan.heads + head) * scan.state_elements() + element;
    };
    const std::int64_t begin = scan.first_chunk[sequence], end = scan.first_chunk[sequence + 1];
    const auto own_state = [&](std::int64_t c) {
      // Nobody has formed the last one if nobody wants the final state.
      return c + 1 < end || (c < end && final) ? Pack<float, N>::load(place(states, c), N) : Pack<float, N>();
    };
    Pack<float, N> now, added = own_state(begin);
    if (initial) now = Pack<float, N>::load(place(const_cast<float*>(initial), sequence), N);
    for (std::int64_t c = begin; c < end; ++c) {
      const Pack<float, N> next = own_state(c + 1);
      now.store(place(states, c), N);
      const float decay = whole[c * scan.heads + head];
      float h[N], u[N];
      now.read(h);
      added.read(u);
#pragma unroll
      for (int i = 0; i < N; ++i) h[i] = decay * h[i] + u[i];
      now = Pack<float, N>::of(h);
      added = next;
    }
    if (final) now.store(place(final, sequence), N);
  });
}

template <class T>
__global__ void __launch_bounds__(tile_threads)
    chunk_outputs_kernel(const Scan<T> scan, const Rows<T> y, const float* starts, bool with_initial) {
  __shared__ Operands operands;
  __shared__ Decays d;
  __shared__ PairTile masked;
  const HeadPart<T> part(scan);
  if (part.at.n == 0) return;
  const Matrix<T> x = part.channels(scan, scan.x), B = part.shared(scan, scan.B),
                  C = part.shared(scan, scan.C);
  const Matrix<float> H = state_of(starts, scan, part.chunk, part.head);
  block_load_decays(d, scan, part.at, part.head);

  // L * C B^T, with dt
  float sums[own][own] = {};
  add_product<Order::depth, Order::depth>(sums, operands, scan.state, C, B);
  for_own(
      [&](int i, int j, int l, int s) { sums[i][j] = s <= l ? sums[i][j] * d.between(s, l) * d.dt[s] : 0; });
  masked.store(sums);

  const float skip = scan.D[part.head];
  for (int p0 = 0; p0 < scan.head_dim; p0 += tile) {
    float out[own][own] = {};
    if (with_initial || !part.at.first)
      add_product<Order::depth, Order::depth>(out, operands, scan.state, C,
                                              [&](int p, int n) { return H(p0 + p, n); });
    for_own([&](int i, int j, int l, int) { out[i][j] *= d.from_start[l]; });
    __syncthreads();  // `masked` is complete
    add_product<Order::depth, Order::side>(
        out, operands, part.at.n, [&](int l, int s) { return masked.rows[l][s]; },
        [&](int p, int s) { return x(s, p0 + p); });
    for_own([&](int i, int j, int l, int p) {
      if (l < part.at.n && p0 + p < scan.head_dim)
        y.row(part.at.t0 + l)[std::int64_t{part.head} * scan.head_dim + p0 + p] =
            rounded<T>(out[i][j] + skip * x(l, p0 + p));
    });
  }
}

template <int N, class T>
void pass_states(const Scan<T>& scan, float* starts, const float* whole, const float* initial, float* final) {
  launch("ssd_scan states", pass_states_kernel<N, T>,
         pass_blocks<N>(scan.sequences, scan.heads, scan.state_elements()), pass_threads, scan, starts, whole,
         initial, final);
}

void forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states) {
  const SsdOptions& o = problem.options;
  if (ssd_on_tensor_cores(y.device(), y.dtype(), o)) return tensor_core_forward(problem, y, states);
  const std::int64_t chunks = problem.chunks.count;
  const Tensor starts = states.chunk_starts ? states.chunk_starts
                                            : Tensor::empty({chunks, o.heads, o.head_dim, o.state_size},
                                                            DType::f32, y.device());
  const Tensor whole_tensor = Tensor::empty({chunks, o.heads}, DType::f32, y.device());
  visit_storage("ssd_scan", y.dtype(), [&]<class T>(TypeTag<T>) {
    const Scan<T> scan(problem);
    float* const start = data_of<float>(starts);
    float* const whole = data_of<float>(whole_tensor);
    const float* const initial = problem.initial_state ? data_of<float>(problem.initial_state) : nullptr;
    float* const final = states.final ? data_of<float>(states.final) : nullptr;
    if (chunks > 0)
      launch("ssd_scan chunk states", chunk_states_kernel<false, T>,
             chunk_blocks(chunks, scan.heads, state_tiles(scan)), tile_threads, scan, scan.x, scan.B, start,
             whole, final != nullptr);
    if (scan.sequences > 0)
      scan.state_elements() % 4 == 0 && rows_aligned(problem.initial_state)
          ? pass_states<4>(scan, start, whole, initial, final)
          : pass_states<1>(scan, start, whole, initial, final);
    if (chunks > 0)
      launch("ssd_scan outputs", chunk_outputs_kernel<T>, chunk_blocks(chunks, scan.heads), tile_threads,
             scan, rows_of<T>(y), static_cast<const float*>(start), initial != nullptr);
  });
}

const Provide provided(ssd_chunked_forward, forward);

}  // namespace
}  // namespace nemocube::cuda
