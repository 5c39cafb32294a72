#pragma once
#include "ops/block_tile.cuh"
#include "ops/ssd_scan/ssd_scan.cuh"

/// Parts of the kernels that serve every size and dtype.
namespace nemocube::cuda::ssd {

using namespace block_tile;

static_assert(tile == Decays::tokens);

/// Columns [col0, col0 + cols) of a chunk's tokens.
template <class T>
__device__ Matrix<T> tokens_of(const Rows<T>& rows, const ChunkPlace& at, std::int64_t col0, int cols) {
  return {rows.row(at.t0) + col0, rows.stride, at.n, cols};
}
/// The state of a head, at `index` of a tensor [.., heads, head_dim, state].
template <class T>
__device__ Matrix<float> state_of(const float* states, const Scan<T>& scan, std::int64_t index, int head) {
  return {states + (index * scan.heads + head) * scan.state_elements(), scan.state, scan.head_dim,
          scan.state};
}

/// All threads: sets `d`, which nobody may read any more.
template <class T>
__device__ void block_load_decays(Decays& d, const Scan<T>& scan, const ChunkPlace& at, int head) {
  __syncthreads();
  if (threadIdx.x < warp_threads) warp_load_decays(d, scan, at.t0, at.n, head);
  __syncthreads();
}

/// Blocks for each chunk and head, and for each of `tiles` of them.
inline dim3 chunk_blocks(std::int64_t chunks, std::int64_t parts, std::int64_t tiles = 1) {
  require(tiles <= 65535, "ssd_scan on cuda: want at most 65535 tiles of a state, got ", tiles);
  return {blocks_for(chunks * parts, 1), static_cast<unsigned>(tiles)};
}
/// The tiles of a state.
template <class T>
std::int64_t state_tiles(const Scan<T>& scan) {
  return std::int64_t{tiles_of(scan.head_dim)} * tiles_of(scan.state);
}

/// A block's part of a grid of chunk_blocks.
template <class T>
struct HeadPart {
  std::int64_t chunk;
  int head, group;
  ChunkPlace at;
  __device__ explicit HeadPart(const Scan<T>& scan)
      : chunk(blockIdx.x / scan.heads),
        head(static_cast<int>(blockIdx.x % scan.heads)),
        group(head / scan.group_heads()),
        at(place_of(scan, chunk)) {}
  __device__ Matrix<T> channels(const Scan<T>& scan, const Rows<T>& rows) const {
    return tokens_of(rows, at, std::int64_t{head} * scan.head_dim, scan.head_dim);
  }
  __device__ Matrix<T> shared(const Scan<T>& scan, const Rows<T>& rows) const {
    return tokens_of(rows, at, std::int64_t{group} * scan.state, scan.state);
  }
};

/// A tile of the state of each chunk and head = sum over tokens l of factor(decays, l) rows[l, p]
/// shared_rows[l, n], in f32: the chunk's own state, or its part of a state's gradient. `whole` receives the
/// decay over each chunk.
template <bool backward, class T>
__global__ void __launch_bounds__(tile_threads)
    chunk_states_kernel(const Scan<T> scan, const Rows<T> rows, const Rows<T> shared_rows, float* states,
                        float* whole, bool for_last) {
  __shared__ Operands operands;
  __shared__ Decays d;
  const HeadPart<T> part(scan);
  if (part.at.n == 0) return;
  block_load_decays(d, scan, part.at, part.head);
  if (blockIdx.y == 0 && threadIdx.x == 0) whole[blockIdx.x] = d.whole;
  if (backward ? part.at.first : part.at.last && !for_last) return;  // nobody reads it
  const int across = tiles_of(scan.state);
  const int p0 = static_cast<int>(blockIdx.y) / across * tile,
            n0 = static_cast<int>(blockIdx.y) % across * tile;
  const Matrix<T> channels = part.channels(scan, rows), shared = part.shared(scan, shared_rows);
  float sums[own][own] = {};
  add_product<Order::side, Order::side>(
      sums, operands, part.at.n,
      [&](int p, int l) {
        return channels(l, p0 + p) * (backward ? d.from_start[l] : d.to_end[l] * d.dt[l]);
      },
      [&](int n, int l) { return shared(l, n0 + n); });
  float* const to = states + std::int64_t{blockIdx.x} * scan.state_elements();
  for_own([&](int i, int j, int p, int n) {
    if (p0 + p < scan.head_dim && n0 + n < scan.state)
      to[std::int64_t{p0 + p} * scan.state + n0 + n] = sums[i][j];
  });
}

/// The kernels that pass states or their gradients from chunk to chunk have blocks of so many threads.
constexpr int pass_threads = 256;
/// A thread has N elements of the states of one sequence and head.
template <int N>
dim3 pass_blocks(std::int64_t sequences, std::int64_t heads, std::int64_t elements) {
  return chunk_blocks(sequences, heads, blocks_for(elements, std::int64_t{pass_threads} * N));
}
/// Calls fn(sequence, head, element) unless the thread has none.
template <int N, class T, class Fn>
__device__ void for_own_state(const Scan<T>& scan, Fn&& fn) {
  const std::int64_t element = (std::int64_t{blockIdx.y} * pass_threads + threadIdx.x) * N;
  if (element < scan.state_elements())
    fn(std::int64_t{blockIdx.x} / scan.heads, static_cast<int>(blockIdx.x % scan.heads), element);
}

}  // namespace nemocube::cuda::ssd
