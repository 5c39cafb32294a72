#pragma once
#include "core/cuda/mma.cuh"
#include "ops/matmul/tiled_product.cuh"

/// A tile of a product of bf16 on tensor cores.
namespace nemocube::cuda {

// Slabs of `depth` k of both factors come into shared memory by asynchronous copies, `stages` - 1 slabs ahead
// of the one that is multiplied. A warp has 64 rows and a quarter of the columns of the tile. It goes in
// steps of 16 k, and loads the fragments of a step while tensor cores have those of the step before.
namespace mma_tiles {

constexpr int rows = 128, depth = 64, threads = 256, stages = 3;
constexpr int steps = depth / 16;  // of a slab
constexpr int warp_rows = 64, warps_down = rows / warp_rows, warps_across = 4,
              fragments_down = warp_rows / 16;
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

/// Brings slabs of a factor into shared memory, in as many parts as a slab has steps.
template <bool along_k, int extent>
class Loader {
  using Tile = Slab<along_k, extent>;
  static constexpr int down = threads / Tile::packs, height = along_k ? extent : depth;
  static constexpr int packs_of_step = height / down / steps;
  static_assert(packs_of_step * steps * down == height && down % 8 == 0);

 public:
  __device__ explicit Loader(const TileFactor<__nv_bfloat16>& factor)
      : stride_(factor.stride), width_(factor.width < extent ? static_cast<int>(factor.width) : extent) {
    next_ = factor.start + row() * stride_ + pack() * 8;
    to_ = Tile::offset(row(), pack());
  }
  /// Begins to copy part `step` of the next slab. `whole`: all of it is there. Otherwise it has `length` k,
  /// and zeros come for what is not there. After the last part the slab behind is next.
  template <bool whole>
  __device__ void copy(unsigned shared, int step, int length) {
    int rows_left = height;
    if constexpr (!whole)
      rows_left = pack() * 8 < (along_k ? length : width_) ? (along_k ? width_ : length) - row() : 0;
#pragma unroll
    for (int i = step * packs_of_step; i < (step + 1) * packs_of_step; ++i)
      copy_async(shared + to_ + Tile::bytes(i * down), next_ + i * down * stride_,
                 whole || i * down < rows_left ? 16 : 0);
    if (step + 1 == steps) next_ += along_k ? depth : depth * stride_;
  }

 private:
  static __device__ int row() { return static_cast<int>(threadIdx.x) / Tile::packs; }
  static __device__ int pack() { return static_cast<int>(threadIdx.x) % Tile::packs; }
  const __nv_bfloat16* next_;
  std::int64_t stride_;
  int width_;
  unsigned to_;
};

/// Loads a warp's fragments of a factor from a slab: 16 x 16 elements each, `fragment` along its rows or
/// columns from `first` on. The left factor's are a FragmentA, the right one's a FragmentB2.
template <bool along_k, int extent, bool left>
class Reader {
  using Tile = Slab<along_k, extent>;

 public:
  __device__ explicit Reader(int first) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Matrices of 8 x 8 are numbered along the rows of A, and along the k of B.
    const int row = left == along_k ? lane % 16 : lane % 8 + lane / 16 * 8;
    const int pack = left == along_k ? lane / 16 : lane / 8 % 2;
    at_ = along_k ? Tile::offset(first + row, pack) : Tile::offset(row, first / 8 + pack);
  }
  /// Rows are multiples of 8 apart, so that a tile permutes their packs alike. Packs are exchanged by
  /// exclusive or, and so is the way from one to another.
  __device__ void load(unsigned (&r)[4], unsigned slab, int fragment, int step) const {
    const int across = along_k ? step : fragment, down = along_k ? fragment : step;
    load_matrices<!along_k>(r, ((slab + at_) ^ across * 32) + Tile::bytes(16 * down));
  }

 private:
  unsigned at_;
};

template <bool a_along_k, bool b_along_k, int cols>
class Fragments {
  static constexpr int pairs = Sums<cols>::fragments_across / 2;

 public:
  __device__ Fragments() : left_(Sums<cols>::row()), right_(Sums<cols>::col()) {}
  /// Loads those of a step into one of two buffers.
  __device__ void load(int buffer, unsigned slab, int step) {
#pragma unroll
    for (int j = 0; j < pairs; ++j) right_.load(b_[buffer][j], slab + slab_bytes(rows), j, step);
#pragma unroll
    for (int i = 0; i < fragments_down; ++i) left_.load(a_[buffer][i].r, slab, i, step);
  }
  __device__ void multiply(int buffer, Sums<cols>& sums) const {
#pragma unroll
    for (int i = 0; i < fragments_down; ++i)
#pragma unroll
      for (int n = 0; n < pairs; ++n) {
        const int j = i % 2 == 0 ? n : pairs - 1 - n;  // so that neighbours share an operand
        const auto& b = b_[buffer][j];
        mma(sums.of[i][2 * j], a_[buffer][i], {{b[0], b[1]}});
        mma(sums.of[i][2 * j + 1], a_[buffer][i], {{b[2], b[3]}});
      }
  }

 private:
  Reader<a_along_k, rows, true> left_;
  Reader<b_along_k, cols, false> right_;
  FragmentA a_[2][fragments_down];
  unsigned b_[2][pairs][4];
};

template <bool a_along_k, bool b_along_k, int cols>
__device__ void multiply(void* shared, const TileFactor<__nv_bfloat16>& a, const TileFactor<__nv_bfloat16>& b,
                         std::int64_t length, Sums<cols>& sums) {
  constexpr unsigned stage_bytes = slab_bytes(rows) + slab_bytes(cols);
  const unsigned begin = shared_address(shared), last = begin + (stages - 1) * stage_bytes;
  Loader<a_along_k, rows> from_a(a);
  Loader<b_along_k, cols> from_b(b);
  int to_come = static_cast<int>((length + depth - 1) / depth);  // slabs, fewer than none at the end
  const int of_last = static_cast<int>(length - (to_come - std::int64_t{1}) * depth);
  const auto copy = [&]<bool whole>(std::bool_constant<whole>, unsigned stage, int step) {
    const int slab_length = to_come > 1 ? depth : to_come == 1 ? of_last : 0;
    from_a.template copy<whole>(stage, step, slab_length);
    from_b.template copy<whole>(stage + slab_bytes(rows), step, slab_length);
  };
#pragma unroll
  for (int stage = 0; stage < stages - 1; ++stage, --to_come) {
#pragma unroll
    for (int step = 0; step < steps; ++step) copy(std::false_type(), begin + stage * stage_bytes, step);
    copy_async_commit();
  }
  Fragments<a_along_k, b_along_k, cols> fragments;
  unsigned slab = begin, free_slab = last;
  copy_async_wait<stages - 2>();
  __syncthreads();
  fragments.load(0, slab, 0);
  // Multiplies a slab and begins to copy another, `whole` if nothing of that is missing: its copies ask no
  // questions.
  const auto turn = [&]<bool whole>(std::bool_constant<whole> all) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      copy(all, free_slab, step);
      if (step + 1 == steps) {
        copy_async_commit();
        free_slab = slab;
        slab = slab == last ? begin : slab + stage_bytes;
        copy_async_wait<stages - 2>();
        __syncthreads();  // all threads' copies of the next slab are there, and fragments of this one have been loaded
      }
      fragments.load((step + 1) % 2, slab, (step + 1) % steps);
      fragments.multiply(step % 2, sums);
    }
    --to_come;
  };
  if (a.width >= rows && b.width >= cols)
    while (to_come > (of_last < depth ? 1 : 0)) turn(std::true_type());
  while (to_come > 1 - stages) turn(std::false_type());
  copy_async_wait<0>();
}

/// Transposes `count` x `count` pairs, of which each of `count` neighbouring lanes has a row.
template <int count>
__device__ void transpose(float2 (&pairs)[count], int lane) {
#pragma unroll
  for (int bit = 1; bit < count; bit *= 2)
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (i & bit) continue;
      const bool upper = lane & bit;
      const float2 give = upper ? pairs[i] : pairs[i | bit];
      const float2 got = {__shfl_xor_sync(0xffffffff, give.x, bit), __shfl_xor_sync(0xffffffff, give.y, bit)};
      if (upper)
        pairs[i] = got;
      else
        pairs[i | bit] = got;
    }
}

// Each lane has two neighbours of several fragments. Lanes exchange them, so that each has 16 bytes of one
// fragment.
template <class T, int cols>
__device__ void store(const TileResult<T>& c, int height, int width, const Sums<cols>& sums) {
  constexpr int elements = whole_pack<T>, fragments = elements / 2,
                packs = Sums<cols>::fragments_across / fragments;
  using Elements = Pack<T, elements>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = sums.col() + lane % fragments * 8 + lane % 4 / fragments * elements;
#pragma unroll
  for (int i = 0; i < fragments_down; ++i) {
    T* to[2];
    int left[2];
    Elements before[2][packs];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = sums.row() + 16 * i + 8 * half + lane / 4;
      to[half] = c.rows.row(row) + column;
      left[half] = row < height ? width - column : 0;
      if (!c.add) continue;
#pragma unroll
      for (int j = 0; j < packs; ++j)  // all are under way before the first is waited for
        if (j * fragments * 8 < left[half])
          before[half][j] = Elements::load(to[half] + j * fragments * 8, elements);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < packs; ++j) {
        float2 pairs[fragments];
#pragma unroll
        for (int k = 0; k < fragments; ++k) {
          const FragmentC& sum = sums.of[i][j * fragments + k];
          pairs[k] = {sum.v[2 * half], sum.v[2 * half + 1]};
        }
        transpose(pairs, lane);
        float v[elements];
        before[half][j].read(v);
#pragma unroll
        for (int k = 0; k < fragments; ++k) {
          v[2 * k] += pairs[k].x;
          v[2 * k + 1] += pairs[k].y;
        }
        if (j * fragments * 8 < left[half]) Elements::of(v).store(to[half] + j * fragments * 8, elements);
      }
  }
}

}  // namespace mma_tiles

/// For rows of all tensors that start at multiples of 16 bytes and have multiples of 8 elements. Every sum is
/// formed in the order of k, whatever the tile.
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
    if constexpr (cols > 128)  // the last columns, where half of this tile would be empty
      if (c.width <= 128) return MmaTiles<128>::template form<a_along_k, b_along_k>(shared, a, b, length, c);
    // Small from here on: the sums leave few registers.
    const int height = static_cast<int>(c.height < rows ? c.height : rows);
    const int width = static_cast<int>(c.width < cols ? c.width : cols);
    mma_tiles::Sums<cols> sums;
    mma_tiles::multiply<a_along_k, b_along_k>(shared, a, b, length, sums);
    mma_tiles::store(c, height, width, sums);
  }
};

}  // namespace nemocube::cuda
