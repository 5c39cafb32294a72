#pragma once
#include <algorithm>

#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"

/// A tile of a product c = op(a) op(b), formed by one block.
namespace nemocube::cuda {

/// A factor of a tile's sums. Its rows of memory lie either along k (a, or b transposed), or across.
template <class T>
struct TileFactor {
  const T* start = nullptr;  ///< of the tile
  std::int64_t stride = 0;   ///< between rows of memory
  std::int64_t width =
      0;  ///< of the matrix from the tile's start on: rows of op(a), columns of op(b); may be more or
          ///< less than the tile
  bool aligned = false;  ///< rows of memory start at multiples of four elements
};

/// The tile of c and what is right of it and below.
template <class T>
struct TileResult {
  Rows<T> rows;
  std::int64_t height = 0, width = 0;
  bool add = false;      ///< to what is there
  bool aligned = false;  ///< rows start at multiples of four elements
};

// With multiply-adds of f32: for any strides, sizes and alignment. Every sum is formed in the order of k,
// whatever the tile.
//
// Slabs of `depth` k of both factors go through shared memory, in two buffers: while one is multiplied, the
// next slab comes into registers. A thread has rows 4 i to 4 i + 3 and 64 + 4 i to 64 + 4 i + 3 of a tile,
// and likewise columns.
namespace fma_tiles {

constexpr int rows = 128, cols = 64, depth = 16, threads = 128;
/// Rows and columns of a thread's part.
constexpr int own_rows = 8, own_cols = 8, threads_across = cols / own_cols;

struct Shared {
  float a[2][depth * rows], b[2][depth * cols];
};

/// Where element w of k lies. The places of four k are permuted, so that threads that write four neighbouring
/// k of eight w use all banks.
template <int wide>
__device__ int place(int k, int w) {
  return k * wide + (w ^ (k / 4 % 4 * 8));
}

/// Brings slabs of a factor into shared memory, by packs of four elements.
template <class T, int wide, bool along_k>
class Loader {
  static constexpr int pack = 4, packs = wide * depth / pack / threads;
  static constexpr int across = (along_k ? depth : wide) / pack, down = threads / across;
  using Elements = Pack<T, pack>;

 public:
  __device__ explicit Loader(const TileFactor<T>& factor)
      : stride_(factor.stride),
        width_(factor.width < wide ? static_cast<int>(factor.width) : wide),
        column_(static_cast<int>(threadIdx.x) % across * pack),
        row_(static_cast<int>(threadIdx.x) / across),
        aligned_(factor.aligned) {
    from_ = factor.start + row_ * stride_ + column_;
  }
  /// Fetches the next slab, of which the factor has `left` k, or more than a slab.
  __device__ void fetch(std::int64_t left) {
    const int height = left < depth ? static_cast<int>(left) : depth;
    const int rows_left = (along_k ? width_ : height) - row_, count = (along_k ? height : width_) - column_;
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      const T* from = from_ + i * down * stride_;
      const int have = i * down < rows_left ? count : 0;
      held_[i] = aligned_ ? Elements::load(from, have) : Elements::template load<false>(from, have);
    }
    from_ += along_k ? depth : depth * stride_;
  }
  __device__ void put(float* shared) const {
#pragma unroll
    for (int i = 0; i < packs; ++i) {
      float v[pack];
      held_[i].read(v);
      if constexpr (along_k) {
#pragma unroll
        for (int j = 0; j < pack; ++j) shared[place<wide>(column_ + j, row_ + i * down)] = v[j];
      } else {
        *reinterpret_cast<float4*>(shared + place<wide>(row_ + i * down, column_)) =
            make_float4(v[0], v[1], v[2], v[3]);
      }
    }
  }

 private:
  const T* from_;
  std::int64_t stride_;
  int width_, column_, row_;
  bool aligned_;
  Elements held_[packs];
};

/// A thread's rows or columns of a slab's k.
template <int wide>
__device__ void read_own(const float* shared, int k, int first, float (&v)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 four = *reinterpret_cast<const float4*>(shared + place<wide>(k, half * wide / 2 + first));
    v[4 * half] = four.x;
    v[4 * half + 1] = four.y;
    v[4 * half + 2] = four.z;
    v[4 * half + 3] = four.w;
  }
}

__device__ inline int own_row() { return static_cast<int>(threadIdx.x) / threads_across * 4; }
__device__ inline int own_col() { return static_cast<int>(threadIdx.x) % threads_across * 4; }

/// The thread's sums over `length` k. All threads of the block call it.
template <bool a_along_k, bool b_along_k, class A, class B>
__device__ void multiply(Shared& shared, const TileFactor<A>& a, const TileFactor<B>& b, std::int64_t length,
                         float (&sums)[own_rows][own_cols]) {
  Loader<A, rows, a_along_k> from_a(a);
  Loader<B, cols, b_along_k> from_b(b);
#pragma unroll
  for (int i = 0; i < own_rows; ++i)
#pragma unroll
    for (int j = 0; j < own_cols; ++j) sums[i][j] = 0;
  if (length <= 0) return;
  from_a.fetch(length);
  from_b.fetch(length);
  from_a.put(shared.a[0]);
  from_b.put(shared.b[0]);
  __syncthreads();
  int buffer = 0;
  for (std::int64_t left = length; left > 0; left -= depth) {
    if (left > depth) {
      from_a.fetch(left - depth);
      from_b.fetch(left - depth);
    }
#pragma unroll
    for (int k = 0; k < depth; ++k) {
      float x[own_rows], y[own_cols];
      read_own<rows>(shared.a[buffer], k, own_row(), x);
      read_own<cols>(shared.b[buffer], k, own_col(), y);
#pragma unroll
      for (int i = 0; i < own_rows; ++i)
#pragma unroll
        for (int j = 0; j < own_cols; ++j) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
    }
    buffer ^= 1;
    if (left > depth) {
      from_a.put(shared.a[buffer]);
      from_b.put(shared.b[buffer]);
    }
    __syncthreads();
  }
}

/// Writes the thread's sums, or adds them.
template <class T>
__device__ void store(const TileResult<T>& c, const float (&sums)[own_rows][own_cols]) {
  using Elements = Pack<T, 4>;
#pragma unroll
  for (int i = 0; i < own_rows; ++i) {
    const int row = own_row() + i % 4 + i / 4 * rows / 2;
    if (row >= c.height) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = own_col() + half * cols / 2;
      const std::int64_t count = c.width - column;
      if (count <= 0) continue;
      T* to = c.rows.row(row) + column;
      float v[4] = {};
      if (c.add) (c.aligned ? Elements::load(to, count) : Elements::template load<false>(to, count)).read(v);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] += sums[i][4 * half + j];
      const Elements out = Elements::of(v);
      if (c.aligned)
        out.store(to, count);
      else
        out.template store<false>(to, count);
    }
  }
}

}  // namespace fma_tiles

struct FmaTiles {
  static constexpr int rows = fma_tiles::rows, cols = fma_tiles::cols, threads = fma_tiles::threads;
  static constexpr std::size_t shared_bytes = sizeof(fma_tiles::Shared);

  /// Forms a tile over `length` k. All threads of the block call it.
  template <bool a_along_k, bool b_along_k, class A, class B, class Out>
  static __device__ void form(void* shared, const TileFactor<A>& a, const TileFactor<B>& b,
                              std::int64_t length, const TileResult<Out>& c) {
    float sums[fma_tiles::own_rows][fma_tiles::own_cols];
    fma_tiles::multiply<a_along_k, b_along_k>(*static_cast<fma_tiles::Shared*>(shared), a, b, length, sums);
    fma_tiles::store(c, sums);
  }
};

/// The tiles of a matrix.
template <class Tiles>
std::int64_t tiles_of(std::int64_t rows, std::int64_t cols) {
  return ((rows + Tiles::rows - 1) / Tiles::rows) * ((cols + Tiles::cols - 1) / Tiles::cols);
}

template <class T>
Rows<const T> const_rows_of(const Tensor& t) {
  const Rows<T> rows = rows_of<T>(t);
  return {rows.start, rows.stride};
}

/// Whether packs of four elements of every row are aligned.
template <class... Tensors>
bool packs_aligned(const Tensors&... tensors) {
  const auto aligned = [](const Tensor& t) {
    const std::int64_t bytes = 4 * size_of(t.dtype());
    return reinterpret_cast<std::uintptr_t>(t.address()) % static_cast<std::uintptr_t>(bytes) == 0 &&
           (t.rows() <= 1 || t.row_stride() % 4 == 0);
  };
  return (aligned(tensors) && ...);
}

}  // namespace nemocube::cuda
