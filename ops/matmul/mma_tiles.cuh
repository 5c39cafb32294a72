#pragma once
#include "core/cuda/mma.cuh"
#include "ops/matmul/tiled_product.cuh"

/// A tile of a product of bf16 on tensor cores.
namespace nemocube::cuda {

// Slabs of `depth` k of both factors come into shared memory by asynchronous copies, two slabs ahead of the one that is
// multiplied. A warp has 64 rows and a quarter of the columns of the tile.
namespace mma_tiles {

constexpr int rows = 128, depth = 32, threads = 256, stages = 3;
constexpr int warp_rows = 64, warps_across = 4, fragments_down = warp_rows / 16;
__host__ __device__ constexpr int slab_bytes(int extent) { return extent * depth * 2; }

/// The sums of a warp.
template <int cols>
struct Sums {
  static constexpr int warp_cols = cols / warps_across, fragments_across = warp_cols / 8;
  FragmentC of[fragments_down][fragments_across];
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / 32; }
  static __device__ int row() { return warp() / warps_across * warp_rows; }
  static __device__ int col() { return warp() % warps_across * warp_cols; }
};

/// A slab of a factor of `extent` rows or columns as it lies in shared memory, which is as in global memory.
template <bool along_k, int extent>
using Slab = SharedTile<along_k ? depth : extent>;

/// Brings slabs of a factor into shared memory.
template <bool along_k, int extent>
class Loader {
  static constexpr int packs_across = Slab<along_k, extent>::packs, down = threads / packs_across;
  static constexpr int height = along_k ? extent : depth, packs = height / down;

 public:
  __device__ explicit Loader(const TileFactor<__nv_bfloat16>& factor)
      : stride_(factor.stride),
        width_(factor.width < extent ? static_cast<int>(factor.width) : extent),
        row_(static_cast<int>(threadIdx.x) / packs_across),
        pack_(static_cast<int>(threadIdx.x) % packs_across) {
    from_ = factor.start + row_ * stride_ + pack_ * 8;
  }
  /// Begins to copy the next slab, of which the factor has `left` k, or more than a slab.
  __device__ void copy(char* shared, std::int64_t left) {
    const Slab<along_k, extent> slab(shared);
    const int length = left < depth ? static_cast<int>(left) : depth;
    const int rows_left = (along_k ? width_ : length) - row_, count = (along_k ? length : width_) - pack_ * 8;
    const int bytes = count <= 0 ? 0 : count >= 8 ? 16 : count * 2;
#pragma unroll
    for (int i = 0; i < packs; ++i)
      copy_async(slab.pack_address(row_ + i * down, pack_), from_ + i * down * stride_,
                 i * down < rows_left ? bytes : 0);
    from_ += along_k ? depth : depth * stride_;
  }

 private:
  const __nv_bfloat16* from_;
  std::int64_t stride_;
  int width_, row_, pack_;
};

template <bool a_along_k, bool b_along_k, int cols>
__device__ void multiply_slab(char* shared, Sums<cols>& sums) {
  const Slab<a_along_k, rows> a(shared);
  const Slab<b_along_k, cols> b(shared + slab_bytes(rows));
  constexpr int pairs = Sums<cols>::fragments_across / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < depth; k += 16) {
    FragmentB2 right[pairs];
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const int n = sums.col() + 16 * j;
      right[j] = b_along_k ? load_b2_transposed(b, n, k, lane) : load_b2(b, k, n, lane);
    }
#pragma unroll
    for (int i = 0; i < fragments_down; ++i) {
      const int m = sums.row() + 16 * i;
      const FragmentA left = a_along_k ? load_a(a, m, k, lane) : load_a_transposed(a, k, m, lane);
#pragma unroll
      for (int j = 0; j < pairs; ++j) {
        mma(sums.of[i][2 * j], left, right[j].left);
        mma(sums.of[i][2 * j + 1], left, right[j].right);
      }
    }
  }
}

template <bool a_along_k, bool b_along_k, int cols>
__device__ void multiply(char* shared, const TileFactor<__nv_bfloat16>& a, const TileFactor<__nv_bfloat16>& b,
                         std::int64_t length, Sums<cols>& sums) {
  constexpr int stage_bytes = slab_bytes(rows) + slab_bytes(cols);
  Loader<a_along_k, rows> from_a(a);
  Loader<b_along_k, cols> from_b(b);
  std::int64_t to_come = length;
  const auto copy = [&](int stage) {
    if (to_come > 0) {
      char* const to = shared + stage * stage_bytes;
      from_a.copy(to, to_come);
      from_b.copy(to + slab_bytes(rows), to_come);
      to_come -= depth;
    }
    copy_async_commit();  // also of nothing, so that the groups count the slabs
  };
#pragma unroll
  for (int stage = 0; stage < stages - 1; ++stage) copy(stage);
  int stage = 0, free_stage = stages - 1;
  for (std::int64_t left = length; left > 0; left -= depth) {
    copy_async_wait<stages - 2>();
    __syncthreads();  // all threads' copies of this slab are there, and the slab before has been multiplied
    copy(free_stage);
    multiply_slab<a_along_k, b_along_k>(shared + stage * stage_bytes, sums);
    stage = stage + 1 == stages ? 0 : stage + 1;
    free_stage = free_stage + 1 == stages ? 0 : free_stage + 1;
  }
  copy_async_wait<0>();
}

template <class T, int cols>
__device__ void store(const TileResult<T>& c, const Sums<cols>& sums) {
  using Two = Pack<T, 2>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < fragments_down; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = sums.row() + 16 * i + 8 * half + lane / 4;
      if (row >= c.height) continue;
#pragma unroll
      for (int j = 0; j < Sums<cols>::fragments_across; ++j) {
        const int column = sums.col() + 8 * j + lane % 4 * 2;
        const std::int64_t count = c.width - column;
        if (count <= 0) continue;
        T* to = c.rows.row(row) + column;
        float v[2] = {};
        if (c.add) Two::load(to, count).read(v);
        v[0] += sums.of[i][j].v[2 * half];
        v[1] += sums.of[i][j].v[2 * half + 1];
        Two::of(v).store(to, count);
      }
    }
}

}  // namespace mma_tiles

/// For rows of all tensors that start at multiples of 16 bytes. Every sum is formed in the order of k, whatever the tile.
template <int tile_cols>
struct MmaTiles {
  static constexpr int rows = mma_tiles::rows, cols = tile_cols, threads = mma_tiles::threads;
  static constexpr std::size_t shared_bytes =
      std::size_t{mma_tiles::stages} * (mma_tiles::slab_bytes(rows) + mma_tiles::slab_bytes(cols));

  /// As FmaTiles::form; `shared` begins at a multiple of 128 bytes.
  template <bool a_along_k, bool b_along_k, class Out>
  static __device__ void form(void* shared, const TileFactor<__nv_bfloat16>& a,
                              const TileFactor<__nv_bfloat16>& b, std::int64_t length,
                              const TileResult<Out>& c) {
    mma_tiles::Sums<cols> sums;
    mma_tiles::multiply<a_along_k, b_along_k>(static_cast<char*>(shared), a, b, length, sums);
    mma_tiles::store(c, sums);
  }
};

}  // namespace nemocube::cuda
