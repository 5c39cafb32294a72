#pragma once
#include <cstdint>

#include "core/cuda/pack.cuh"

/// Products of f32 matrices of any size, for the kernels of scans that serve every size and dtype. A block of
/// 256 threads forms a tile of 64 x 64; each thread has 4 x 4 of its elements.
namespace nemocube::cuda::block_tile {

constexpr int tile = 64, tile_depth = 16, tile_threads = 256, own = 4;
__host__ __device__ constexpr int tiles_of(int count) { return (count + tile - 1) / tile; }

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

}  // namespace nemocube::cuda::block_tile
