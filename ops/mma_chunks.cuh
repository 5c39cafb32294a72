#pragma once
#include <cstdint>

#include "core/cuda/mma.cuh"
#include "core/cuda/rows.cuh"
#include "core/cuda/warp.cuh"

/// Parts of the kernels of scans that form products on tensor cores, for bf16: the tokens of a chunk as
/// tiles, products of fragments, and states with 128 rows in registers.
namespace nemocube::cuda::mma_chunks {

using Element = __nv_bfloat16;
constexpr int state_rows = 128;
/// Tokens of the pieces in which kernels walk along a sequence.
constexpr int piece = 64;

/// A block that walks along a sequence: each warp has 16 tokens of a piece, and 32 rows of the state.
constexpr int walk_warps = piece / 16, walk_threads = walk_warps * warp_threads;

/// The same number, of which the compiler knows no more than that it is not negative. It then forms addresses
/// that depend on the number where they are needed: formed ahead of a long loop, they would take more
/// registers than there are.
__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  __builtin_assume(x >= 0);
  return x;
}

__device__ inline float2 to_floats(unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U));
}
template <int cols>
__device__ float2 pair_at(const SharedTile<cols>& tile, int row, int col) {
  return to_floats(*reinterpret_cast<const unsigned*>(tile.at(row, col)));
}
template <int cols>
__device__ void set_pair(const SharedTile<cols>& tile, int row, int col, float low, float high) {
  *reinterpret_cast<unsigned*>(tile.at(row, col)) = pack_bf16(low, high);
}

__device__ inline unsigned scaled(unsigned pair, float low, float high) {
  const float2 v = to_floats(pair);
  return pack_bf16(v.x * low, v.y * high);
}
/// The rows of a fragment times factors: of the thread's upper and lower row.
__device__ inline FragmentA scaled_rows(const FragmentA& a, float upper, float lower) {
  return {{scaled(a.r[0], upper, upper), scaled(a.r[1], lower, lower), scaled(a.r[2], upper, upper),
           scaled(a.r[3], lower, lower)}};
}
/// The columns of a fragment times factor(column).
template <class Factor>
__device__ FragmentA scaled_columns(const FragmentA& a, int lane, Factor&& factor) {
  const int k = lane % 4 * 2;
  const float f0 = factor(k), f1 = factor(k + 1), f8 = factor(k + 8), f9 = factor(k + 9);
  return {{scaled(a.r[0], f0, f1), scaled(a.r[1], f0, f1), scaled(a.r[2], f8, f9), scaled(a.r[3], f8, f9)}};
}

/// c[i][j] += a[i] times the rows [row, row + 16) of a tile, from column col0 on.
template <int left, int right, int cols>
__device__ void add_product(FragmentC (&c)[left][right], const FragmentA (&a)[left],
                            const SharedTile<cols>& b, int row, int lane, int col0 = 0) {
#pragma unroll
  for (int j = 0; j + 1 < right; j += 2) {
    const FragmentB2 pair = load_b2(b, row, col0 + 8 * j, lane);
#pragma unroll
    for (int i = 0; i < left; ++i) {
      mma(c[i][j], a[i], pair.left);
      mma(c[i][j + 1], a[i], pair.right);
    }
  }
  if constexpr (right % 2 == 1) {
    const FragmentB last = load_b(b, row, col0 + 8 * (right - 1), lane);
#pragma unroll
    for (int i = 0; i < left; ++i) mma(c[i][right - 1], a[i], last);
  }
}
/// c += a times the transpose of the rows [row, row + 16), columns [col, col + 16), of a tile.
template <int cols>
__device__ void add_transposed_product(FragmentC (&c)[2], const FragmentA& a, const SharedTile<cols>& b,
                                       int row, int col, int lane) {
  const FragmentB2 pair = load_b2_transposed(b, row, col, lane);
  mma(c[0], a, pair.left);
  mma(c[1], a, pair.right);
}

/// Calls fn(value, row, column) for the thread's elements of neighbouring fragments.
template <int count, class Fn>
__device__ void for_each(FragmentC (&c)[count], int row0, int col0, int lane, Fn&& fn) {
#pragma unroll
  for (int j = 0; j < count; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      fn(c[j].v[i], row0 + lane / 4 + i / 2 * 8, col0 + 8 * j + lane % 4 * 2 + i % 2);
}
/// Calls fn(values of two neighbours, row, first column, 0 or 1 for the thread's upper or lower row).
template <int count, class Fn>
__device__ void for_each_pair(FragmentC (&c)[count], int row0, int lane, Fn&& fn) {
#pragma unroll
  for (int j = 0; j < count; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      fn(c[j].v[2 * i], c[j].v[2 * i + 1], row0 + lane / 4 + i * 8, 8 * j + lane % 4 * 2, i);
}

/// Begins to copy the tokens [t0, t0 + n) of the columns from col0 on to a tile; its other rows become zero.
template <int rows, int threads, int cols>
__device__ void copy_tokens(const SharedTile<cols>& to, const Rows<Element>& from, std::int64_t t0, int n,
                            std::int64_t col0, int thread = static_cast<int>(threadIdx.x)) {
  const Element* const start = from.row(t0) + col0;
  copy_rows_async<rows, threads>(to, thread,
                                 [&](int r) { return r < n ? start + r * from.stride : nullptr; });
}
/// A warp begins to copy the tokens of its rows [row0, row0 + 16).
template <int cols>
__device__ void copy_own_tokens(const SharedTile<cols>& to, int row0, const Rows<Element>& from,
                                std::int64_t t0, int n, std::int64_t col0, int lane) {
  // 16 rows of a tile are a tile, because their order in memory repeats after 8.
  copy_tokens<16, warp_threads>(SharedTile<cols>(to.start + SharedTile<cols>::bytes(row0)), from, t0 + row0,
                                n - row0, col0, lane);
}
/// A warp writes the rows [row0, row0 + 16) of a tile, columns [col0, col0 + width), as the tokens t0 + row0
/// and so on, from column to_col0 on; those below `n` exist.
template <int width, int cols>
__device__ void store_tokens(const SharedTile<cols>& tile, int row0, const Rows<Element>& to, std::int64_t t0,
                             int n, std::int64_t to_col0, int lane, int col0 = 0) {
  constexpr int packs = width / 8;
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * packs; i += warp_threads) {
    const int row = row0 + i / packs, pack = i % packs;
    if (row < n)
      *reinterpret_cast<uint4*>(to.row(t0 + row) + to_col0 + pack * 8) =
          *reinterpret_cast<const uint4*>(tile.at(row, col0 + pack * 8));
  }
  __syncwarp();
}

/// The part of a state that a warp of a walking block has, 32 rows.
template <int cols>
struct State {
  FragmentC of[2][cols / 8];

  /// Calls fn(value, neighbour in the next column, row, column).
  template <class Fn>
  __device__ void for_each_pair(int warp, int lane, Fn&& fn) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      mma_chunks::for_each_pair(of[i], 32 * warp + 16 * i, lane,
                                [&](float& a, float& b, int row, int col, int) { fn(a, b, row, col); });
  }
  __device__ void store(const SharedTile<cols>& to, int warp, int lane) {
    for_each_pair(warp, lane, [&](float a, float b, int row, int col) { set_pair(to, row, col, a, b); });
  }
  /// = factor times what the tile has
  __device__ void load(const SharedTile<cols>& from, float factor, int warp, int lane) {
    for_each_pair(warp, lane, [&](float& a, float& b, int row, int col) {
      const float2 v = pair_at(from, row, col);
      a = factor * v.x;
      b = factor * v.y;
    });
  }
  /// = a state [head_dim, state_size] in f32, from its row of the first channel on
  __device__ void load(const float* from, int state_size, int warp, int lane) {
    for_each_pair(warp, lane, [&](float& a, float& b, int n, int p) {
      a = from[p * state_size + n];
      b = from[(p + 1) * state_size + n];
    });
  }
  /// Calls fn(values, place) for the thread's places of four f32 each, in memory that only threads like it
  /// use.
  template <class Fn>
  __device__ void for_each_four(float* memory, int warp, int lane, Fn&& fn) {
    float4* const places = reinterpret_cast<float4*>(memory) + warp * warp_threads + lane;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < cols / 8; ++j) fn(of[i][j].v, places[(i * (cols / 8) + j) * walk_threads]);
  }
  __device__ void write(float* to, int warp, int lane) {
    for_each_four(to, warp, lane,
                  [](const float(&v)[4], float4& place) { place = make_float4(v[0], v[1], v[2], v[3]); });
  }
  __device__ void read(float* from, int warp, int lane) {
    for_each_four(from, warp, lane, [](float(&v)[4], const float4& place) {
      v[0] = place.x;
      v[1] = place.y;
      v[2] = place.z;
      v[3] = place.w;
    });
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < cols / 8; ++j)
#pragma unroll
        for (float& v : of[i][j].v) v *= factor;
  }
  /// += sum over the tokens l of a piece of factor(l) rows[l, n] channels[l, p]
  template <int unroll = 1, class Factor>
  __device__ void add(const SharedTile<state_rows>& rows, const SharedTile<cols>& channels, int warp,
                      int lane, Factor&& factor) {
    lane = opaque(lane);
#pragma unroll unroll
    for (int l = 0; l < piece; l += 16) {
      FragmentA a[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        a[i] = scaled_columns(load_a_transposed(rows, l, 32 * warp + 16 * i, lane), lane,
                              [&](int k) { return factor(l + k); });
      add_product(of, a, channels, l, lane);
    }
  }
};

/// Copies a state from a tile to where it is kept, by all threads of a block.
template <int threads, int cols>
__device__ void keep_state(Element* to, int stride, const SharedTile<cols>& from) {
  constexpr int packs = cols / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < state_rows * packs; i += threads)
    *reinterpret_cast<uint4*>(to + i / packs * stride + i % packs * 8) =
        *reinterpret_cast<const uint4*>(from.at(i / packs, i % packs * 8));
}

/// Tensors that 16-byte accesses need in another place: copies of them where rows do not begin at multiples
/// of 16 bytes.
inline Tensor aligned_operand(const Tensor& t) { return rows_aligned(t) ? t : t.clone(); }
class AlignedOutput {
 public:
  explicit AlignedOutput(const Tensor& to)
      : to_(to), aligned_(rows_aligned(to) ? to : Tensor::empty(to.shape(), to.dtype(), to.device())) {}
  const Tensor& get() const { return aligned_; }
  /// After the kernels have been queued.
  void finish() const {
    if (!aligned_.same_storage(to_)) to_.copy_from(aligned_);
  }

 private:
  Tensor to_, aligned_;
};

}  // namespace nemocube::cuda::mma_chunks
