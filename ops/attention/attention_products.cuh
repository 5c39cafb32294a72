#pragma once
#include "ops/attention/attention_tiles.cuh"

// Products and weighted sums of the tiles of attention.cu. A block of 16 x 8 threads has 64 rows. The scores
// of two tiles are products over the head's channels, 32 at a time; weighted sums of rows add to 64 x `width`
// sums in registers.
namespace nemocube::cuda::attention {

// A thread has four rows and twice four columns of the scores: a warp's four threads y and eight
// threads x then read different banks, whether they read four numbers of their rows or of their columns.
constexpr int tile = 64, rows_each = 4, columns_each = 8;
constexpr int threads_x = tile / columns_each, threads_y = tile / rows_each, threads = threads_x * threads_y;
// Channels of a product, and rows of a weighted sum, that are in shared memory at a time.
constexpr int depth = 32;

/// All kernels have these tiles. To have no bank conflicts, the columns of a row are permuted by groups of
/// four or eight.
template <int width>
struct Shared {
  union {
    struct {
      float left[depth][tile], right[depth][tile];  // a channel of all rows
    };
    float rows[depth][width];
  };
  float weights[tile][tile];  // [other row][row]
};

struct TileThread {
  int thread = anew(static_cast<int>(threadIdx.x)), x = thread % threads_x, y = thread / threads_x;
  int row = y * rows_each;
  /// Column j of the thread's eight: two groups of four.
  __device__ int column(int j) const { return j / 4 * (tile / 2) + x * 4 + j % 4; }
};

using Scores = float[rows_each][columns_each];

__device__ inline float4 four(const float* at) { return *reinterpret_cast<const float4*>(at); }
__device__ inline void put_four(float* at, float a, float b, float c, float d) {
  *reinterpret_cast<float4*>(at) = make_float4(a, b, c, d);
}

template <class T>
__device__ Pack<T, whole_pack<T>> load_pack(const T* at, int count, bool aligned) {
  using Elements = Pack<T, whole_pack<T>>;
  return aligned ? Elements::template load<true>(at, count) : Elements::template load<false>(at, count);
}

/// Where column r of channel d is in `left` and `right`.
template <class T>
__device__ int column_of(int d, int r) {
  return r ^ (8 * (d / whole_pack<T> % 4));
}

/// to[d][column_of(d, r)] = channel first + d of row r; zeros beyond the last row and channel.
template <class T, class RowOf>
__device__ void load_channels(float (&to)[depth][tile], RowOf&& row_of, int first, int channels,
                              bool aligned) {
  constexpr int N = whole_pack<T>;
#pragma unroll 2
  for (int i = TileThread().thread; i < tile * depth / N; i += threads) {
    // A warp reads four packs of eight rows.
    const int warp = i / warp_threads, lane = i % warp_threads;
    const int r = lane / 4 + warp % (tile / 8) * 8, d = (lane % 4 + warp / (tile / 8) * 4) * N;
    float v[N] = {};
    if (const T* const row = row_of(r); row && first + d < channels)
      load_pack<T>(row + first + d, channels - first - d, aligned).read(v);
#pragma unroll
    for (int j = 0; j < N; ++j) to[d + j][column_of<T>(d, r)] = v[j];
  }
}

/// s[i][j] = sum over channels of left row `row` + i times right row column(j).
template <class T, int width, class Left, class Right>
__device__ void multiply(Scores& s, Shared<width>& shared, Left&& left, Right&& right, int channels,
                         bool aligned) {
  const TileThread place;
#pragma unroll
  for (int i = 0; i < rows_each; ++i)
#pragma unroll
    for (int j = 0; j < columns_each; ++j) s[i][j] = 0;
  for (int first = 0; first < channels; first += depth) {
    __syncthreads();
    load_channels<T>(shared.left, left, first, channels, aligned);
    load_channels<T>(shared.right, right, first, channels, aligned);
    __syncthreads();
    const int steps = channels - first < depth ? channels - first : depth;
#pragma unroll 2
    for (int d = 0; d < steps; ++d) {
      const float4 a = four(&shared.left[d][column_of<T>(d, place.row)]);
      const float4 b = four(&shared.right[d][column_of<T>(d, place.column(0))]);
      const float4 c = four(&shared.right[d][column_of<T>(d, place.column(4))]);
      const float as[4] = {a.x, a.y, a.z, a.w}, bs[8] = {b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
#pragma unroll
      for (int i = 0; i < rows_each; ++i)
#pragma unroll
        for (int j = 0; j < columns_each; ++j) s[i][j] = fmaf(as[i], bs[j], s[i][j]);
    }
  }
}

/// Where the weights of four rows 4 y are for the other row n.
template <int width>
__device__ float* weights_of(Shared<width>& shared, int n, int y) {
  return &shared.weights[n][(y ^ (n / 4 % 8)) * 4];
}

/// weights[column(j)][row + i] = w[i][j]. Nobody reads weights any more.
template <int width>
__device__ void put_weights(Shared<width>& shared, const Scores& w) {
  const TileThread place;
#pragma unroll
  for (int j = 0; j < columns_each; ++j)
    put_four(weights_of(shared, place.column(j), place.y), w[0][j], w[1][j], w[2][j], w[3][j]);
}

/// Sums of a thread: rows `row` + i, channels 32 c + 4 x + j.
template <int width>
struct Accumulators {
  static constexpr int groups = width / (4 * threads_x);
  float of[rows_each][groups][4];
  __device__ void scale(const float (&factor)[rows_each]) {
#pragma unroll
    for (int i = 0; i < rows_each; ++i)
#pragma unroll
      for (int c = 0; c < groups; ++c)
#pragma unroll
        for (int j = 0; j < 4; ++j) of[i][c][j] *= factor[i];
  }
};

/// Rows [first_row, first_row + depth), channels [first, first + width); zeros beyond the last ones.
template <class T, int width, class RowOf>
__device__ void load_rows(float (&to)[depth][width], RowOf&& row_of, int first_row, int first, int channels,
                          bool aligned) {
  constexpr int N = whole_pack<T>, packs = width / N;
#pragma unroll 2
  for (int i = TileThread().thread; i < depth * packs; i += threads) {
    const int r = i / packs, d = i % packs * N;
    float v[N] = {};
    if (const T* const row = row_of(first_row + r); row && first + d < channels)
      load_pack<T>(row + first + d, channels - first - d, aligned).read(v);
    if constexpr (N == 4) {
      put_four(&to[r][d], v[0], v[1], v[2], v[3]);
    } else {
      // Half of the threads begin with the upper four: eight neighbours then write to different banks.
      const bool upper = i / 4 % 2 == 1;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool high = upper != (half == 1);
        put_four(&to[r][d + (high ? 4 : 0)], high ? v[4] : v[0], high ? v[5] : v[1], high ? v[6] : v[2],
                 high ? v[7] : v[3]);
      }
    }
  }
}

/// sums += weights rows, for the channels from `first` on and `count` other rows. The weights have been put.
template <class T, int width, class RowOf>
__device__ void accumulate(Accumulators<width>& sums, Shared<width>& shared, RowOf&& row_of, int count,
                           int first, int channels, bool aligned) {
  const TileThread place;
  for (int first_row = 0; first_row < count; first_row += depth) {
    __syncthreads();
    load_rows<T>(shared.rows, row_of, first_row, first, channels, aligned);
    __syncthreads();
    const int rows = count - first_row < depth ? count - first_row : depth;
#pragma unroll 2
    for (int n = 0; n < rows; ++n) {
      const float4 w = four(weights_of(shared, first_row + n, place.y));
      const float ws[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int c = 0; c < Accumulators<width>::groups; ++c) {
        const float4 v = four(&shared.rows[n][c * 4 * threads_x + place.x * 4]);
        const float vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < rows_each; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) sums.of[i][c][j] = fmaf(ws[i], vs[j], sums.of[i][c][j]);
      }
    }
  }
}

/// Stores the sums times a factor for each row, or adds that. row_of(r): of the result.
template <int width, class RowOf>
__device__ void store(const Accumulators<width>& sums, RowOf&& row_of, const float (&factor)[rows_each],
                      int first, int channels, bool aligned, bool add) {
  const TileThread place;
#pragma unroll
  for (int i = 0; i < rows_each; ++i) {
    const auto row = row_of(place.row + i);
    if (!row) continue;
#pragma unroll
    for (int c = 0; c < Accumulators<width>::groups; ++c)
      if (const int d = first + c * 4 * threads_x + place.x * 4; d < channels)
        store_sums(row + d, sums.of[i][c], factor[i], channels - d, aligned, add);
  }
}

}  // namespace nemocube::cuda::attention
