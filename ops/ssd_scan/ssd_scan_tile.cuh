#pragma once
#include "ops/ssd_scan/ssd_scan.cuh"

/// Products of f32 matrices of any size, for the kernels that serve every size and dtype. A block of 256
/// threads forms a tile of 64 x 64; each thread has 4 x 4 of its elements.
namespace nemocube::cuda::ssd {

constexpr int tile = 64, tile_depth = 16, tile_threads = 256, own = 4;

static_assert(tile == Decays::tokens);

/// Elements [row0 + i, col0 + j] of a matrix in memory, zeros outside it.
template <class T>
struct Matrix {
  const T* start;
  std::int64_t stride;
  int rows, cols;
  __device__ float operator()(int r, int c) const {
    return r < rows && c < cols ? to_float(start[r * stride + c]) : 0;
  }
};

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

struct Operands {
  alignas(16) float left[tile_depth][tile + 4], right[tile_depth][tile + 4];
};

/// Which index of an operand neighbours in memory share: that along the products' sum, or the other one.
enum class Order { depth, side };

/// The elements of an operand that a thread brings to shared memory. Threads of a warp have neighbours in
/// memory, and store them to different banks.
template <Order order>
struct OperandPart {
  float values[own];
  template <class Fn>
  static __device__ void for_each(Fn&& fn) {
    const int t = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < own; ++i)
      if constexpr (order == Order::depth)
        fn(i, t / 8 + 32 * (i / 2), t % 8 + 8 * (i % 2));
      else
        fn(i, t % tile, t / tile + own * i);
  }
  template <class Element>
  __device__ void load(int depth0, Element&& element) {
    for_each([&](int i, int side, int depth) { values[i] = element(side, depth0 + depth); });
  }
  __device__ void store(float (&to)[tile_depth][tile + 4]) const {
    for_each([&](int i, int side, int depth) { to[depth][side] = values[i]; });
  }
};

/// sums[i][j] += sum over k of left(row, k) right(column, k), for the thread's rows and columns. Both are
/// zero for k from `depth` to the next multiple of tile_depth.
template <Order left_order, Order right_order, class Left, class Right>
__device__ void add_product(float (&sums)[own][own], Operands& shared, int depth, Left&& left,
                            Right&& right) {
  const int row = static_cast<int>(threadIdx.x) / 16 * own, col = static_cast<int>(threadIdx.x) % 16 * own;
  OperandPart<left_order> left_part;
  OperandPart<right_order> right_part;
  const auto load = [&](int k0) {
    left_part.load(k0, left);
    right_part.load(k0, right);
  };
  load(0);
  for (int k0 = 0; k0 < depth; k0 += tile_depth) {
    __syncthreads();
    left_part.store(shared.left);
    right_part.store(shared.right);
    __syncthreads();
    if (k0 + tile_depth < depth) load(k0 + tile_depth);
#pragma unroll
    for (int k = 0; k < tile_depth; ++k) {
      const float4 l = *reinterpret_cast<const float4*>(&shared.left[k][row]);
      const float4 r = *reinterpret_cast<const float4*>(&shared.right[k][col]);
      const float a[own] = {l.x, l.y, l.z, l.w}, b[own] = {r.x, r.y, r.z, r.w};
#pragma unroll
      for (int i = 0; i < own; ++i)
#pragma unroll
        for (int j = 0; j < own; ++j) sums[i][j] += a[i] * b[j];
    }
  }
}

/// Calls fn(i, j, row, column) for the thread's elements of a tile.
template <class Fn>
__device__ void for_own(Fn&& fn) {
  const int row = static_cast<int>(threadIdx.x) / 16 * own, col = static_cast<int>(threadIdx.x) % 16 * own;
#pragma unroll
  for (int i = 0; i < own; ++i)
#pragma unroll
    for (int j = 0; j < own; ++j) fn(i, j, row + i, col + j);
}

/// A matrix with an element for each pair of tokens, in shared memory.
struct PairTile {
  alignas(16) float rows[tile][tile + 8];  // rows of a warp's reads as left operand begin at different banks
  __device__ void store(const float (&own_values)[own][own]) {
    const int row = static_cast<int>(threadIdx.x) / 16 * own, col = static_cast<int>(threadIdx.x) % 16 * own;
#pragma unroll
    for (int i = 0; i < own; ++i)
      *reinterpret_cast<float4*>(&rows[row + i][col]) =
          make_float4(own_values[i][0], own_values[i][1], own_values[i][2], own_values[i][3]);
  }
};

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
__host__ __device__ constexpr int tiles_of(int count) { return (count + tile - 1) / tile; }
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
