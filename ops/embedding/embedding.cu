#include "core/cuda/elementwise.cuh"
#include "core/cuda/random.cuh"
#include "core/cuda/values.cuh"
#include "core/cuda/warp.cuh"
#include "ops/embedding/embedding_kernels.h"

namespace nemocube::cuda {
namespace {

// N columns of a token's row for each thread.
template <class T, int N>
__global__ void forward_kernel(RowBlocks grid, Rows<T> y, const std::int64_t* ids, std::int64_t begin,
                               Rows<T> weight, std::int64_t weight_rows, float scale) {
  for_own_pack<N>(grid, [&](std::int64_t t, std::int64_t c, std::int64_t count) {
    const std::int64_t row = ids[t] - begin;
    const bool own = row >= 0 && row < weight_rows;
    auto pack = own ? Pack<T, N>::load(weight.row(row) + c, count) : Pack<T, N>();
    if (scale != 1) {
      float v[N];
      pack.read(v);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] *= scale;
      pack = Pack<T, N>::of(v);
    }
    pack.store(y.row(t) + c, count);
  });
}

void forward(const Tensor& y, const Tensor& ids, std::int64_t begin, const Tensor& weight, double scale) {
  visit_storage("embedding", weight.dtype(), [&]<class T>(TypeTag<T>) {
    if (y.numel() == 0) return;
    const auto with_packs_of = [&](auto columns) {
      launch_elementwise<columns>("embedding forward", forward_kernel<T, columns>, y.rows(), y.cols(),
                                  rows_of<T>(y), static_cast<const std::int64_t*>(data_of<std::int64_t>(ids)),
                                  begin, rows_of<T>(weight), weight.rows(), static_cast<float>(scale));
    };
    if (rows_aligned(y, weight))
      with_packs_of(std::integral_constant<int, whole_pack<T>>());
    else
      with_packs_of(std::integral_constant<int, 1>());
  });
}

// Backward: the tokens are sorted by the row of dweight that their id names, those of one row in ascending
// order. Tiles of tokens are sorted first; then each token finds its place among those of the other tiles. A
// block adds up some columns of one row: the block at the first of the row's tokens. cub::DeviceRadixSort
// instead takes a launch more, and has bank conflicts.
constexpr int threads = 128;
constexpr int tile = 512;
constexpr int loads_at_once = 4;

/// What is sorted: the row of a token, or the number of rows where it has none, then the token. No two are
/// equal.
__device__ std::int64_t packed(std::int64_t row, std::int64_t token) { return row << 32 | token; }
__device__ std::int64_t row_of(std::int64_t packed) { return packed >> 32; }
__device__ std::int64_t token_of(std::int64_t packed) { return packed & 0xffffffff; }

__global__ void __launch_bounds__(tile)
    sort_tiles_kernel(std::int64_t* tiles, const std::int64_t* ids, std::int64_t begin, std::int64_t rows,
                      std::int64_t tokens) {
  __shared__ std::int64_t of_tile[tile];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * tile, token = first + threadIdx.x;
  const int count = static_cast<int>(tokens - first < tile ? tokens - first : tile);
  std::int64_t own = 0;
  if (token < tokens) {
    const std::int64_t row = ids[token] - begin;
    own = packed(row >= 0 && row < rows ? row : rows, token);
    of_tile[threadIdx.x] = own;
  }
  __syncthreads();
  if (token >= tokens) return;
  int place = 0;
  for (int i = 0; i < count; ++i) place += of_tile[i] < own;
  tiles[first + place] = own;
}

// Threads that search for the place of one token, each in its share of the tiles.
constexpr int searchers = 8, merge_threads = 256, tokens_of_merge = merge_threads / searchers;

__global__ void __launch_bounds__(merge_threads)
    merge_tiles_kernel(std::int64_t* sorted, const std::int64_t* tiles, std::int64_t tokens) {
  const int searcher = static_cast<int>(threadIdx.x) % searchers;
  const std::int64_t at =
      std::int64_t{blockIdx.x} * tokens_of_merge + static_cast<int>(threadIdx.x) / searchers;
  const std::int64_t own_tile = at / tile * tile, own = at < tokens ? tiles[at] : 0;
  std::int64_t place = searcher == 0 ? at - own_tile : 0;
  for (std::int64_t first = std::int64_t{searcher} * tile; first < tokens; first += searchers * tile) {
    if (first == own_tile) continue;
    std::int64_t low = first, high = first + tile < tokens ? first + tile : tokens;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (tiles[middle] < own)
        low = middle + 1;
      else
        high = middle;
    }
    place += low - first;
  }
  place = warp_sum<searchers>(place);
  if (searcher == 0 && at < tokens) sorted[place] = own;
}

// A thread has four columns, 16 bytes of the gradient, which is f32: the accesses of a warp lie side by side.
constexpr int backward_columns = 4;

template <class T, bool aligned>
__global__ void __launch_bounds__(threads)
    backward_kernel(Rows<float> dweight, bool add, std::int64_t rows, Rows<T> dy, std::int64_t cols,
                    const std::int64_t* sorted, std::int64_t tokens, unsigned blocks_per_row, float scale) {
  constexpr int N = backward_columns;
  const std::int64_t begin = blockIdx.x / blocks_per_row, row = row_of(sorted[begin]);
  if (row == rows || (begin > 0 && row_of(sorted[begin - 1]) == row)) return;
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x % blocks_per_row) * threads + threadIdx.x) * N;
  if (c >= cols) return;
  float* const to = dweight.row(row) + c;
  float sum[N] = {};
  if (add) read_values<aligned>(to, cols - c, sum);
  bool more = true;
  for (std::int64_t i = begin; more; i += loads_at_once) {
    Pack<T, N> packs[loads_at_once];
    bool has[loads_at_once];
#pragma unroll
    for (int k = 0; k < loads_at_once; ++k) {
      const std::int64_t next = i + k < tokens ? sorted[i + k] : packed(rows, 0);
      has[k] = row_of(next) == row;
      if (has[k]) packs[k] = Pack<T, N>::template load<aligned>(dy.row(token_of(next)) + c, cols - c);
    }
#pragma unroll
    for (int k = 0; k < loads_at_once; ++k)
      if (has[k]) {
        float g[N];
        packs[k].read(g);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += scale * g[j];
      }
    more = has[loads_at_once - 1];
  }
  write_values<aligned>(to, cols - c, sum);
}

void backward(const Output& dweight, const Tensor& ids, std::int64_t begin, const Tensor& dy, double scale) {
  if (dweight.how == Into::set) dweight.to.zero();
  const std::int64_t rows = dweight.to.rows(), tokens = dy.rows();
  if (dy.numel() == 0 || rows == 0) return;
  require(rows < (std::int64_t{1} << 31), "embedding on cuda: want fewer than 2^31 rows, got ", rows);

  const unsigned tiles = blocks_for(tokens, tile);
  const auto of_all_tokens = [&] { return Tensor::empty({tokens}, DType::i64, dy.device()); };
  Tensor sorted = of_all_tokens();
  launch("embedding backward, tiles", sort_tiles_kernel, tiles, tile, data_of<std::int64_t>(sorted),
         static_cast<const std::int64_t*>(data_of<std::int64_t>(ids)), begin, rows, tokens);
  if (tiles > 1) {
    const Tensor merged = of_all_tokens();
    launch("embedding backward, merge", merge_tiles_kernel, blocks_for(tokens, tokens_of_merge),
           merge_threads, data_of<std::int64_t>(merged),
           static_cast<const std::int64_t*>(data_of<std::int64_t>(sorted)), tokens);
    sorted = merged;
  }

  visit_storage("embedding", dy.dtype(), [&]<class T>(TypeTag<T>) {
    const unsigned blocks_per_row = blocks_for(dy.cols(), std::int64_t{threads} * backward_columns);
    const auto queue = [&](auto aligned) {
      launch("embedding backward", backward_kernel<T, aligned>, blocks_for(tokens * blocks_per_row, 1),
             threads, rows_of<float>(dweight.to), dweight.how == Into::add, rows, rows_of<T>(dy), dy.cols(),
             static_cast<const std::int64_t*>(data_of<std::int64_t>(sorted)), tokens, blocks_per_row,
             static_cast<float>(scale));
    };
    rows_aligned(dweight.to, dy) ? queue(std::true_type()) : queue(std::false_type());
  });
}

// N columns of a row for each thread.
template <class T, int N>
__global__ void noise_kernel(RowBlocks grid, Rows<T> y, uint2 key, const double* magnitude,
                             const std::int64_t* row_numbers) {
  for_own_pack<N>(grid, [&](std::int64_t t, std::int64_t c, std::int64_t count) {
    const float unit = static_cast<float>(*magnitude) * 0x1p-24F;
    TableRow draws(key, static_cast<std::uint64_t>(row_numbers[t]));
    float v[N];
    Pack<T, N>::load(y.row(t) + c, count).read(v);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int k = static_cast<int>(draws.bits(static_cast<std::uint64_t>(c + i))) >> 8;
      // The product joins no sum without its rounding.
      v[i] = __fadd_rn(v[i], __fmul_rn(static_cast<float>(2 * k + 1), unit));
    }
    Pack<T, N>::of(v).store(y.row(t) + c, count);
  });
}

void add_noise(const Tensor& y, const RandomTable& draws, const Tensor& magnitude,
               const Tensor& row_numbers) {
  if (y.numel() == 0) return;
  visit_storage("embedding", y.dtype(), [&]<class T>(TypeTag<T>) {
    const auto with_packs_of = [&](auto columns) {
      launch_elementwise<columns>("embedding noise", noise_kernel<T, columns>, y.rows(), y.cols(),
                                  rows_of<T>(y), key_of(draws),
                                  static_cast<const double*>(data_of<double>(magnitude)),
                                  static_cast<const std::int64_t*>(data_of<std::int64_t>(row_numbers)));
    };
    if (rows_aligned(y))
      with_packs_of(std::integral_constant<int, whole_pack<T>>());
    else
      with_packs_of(std::integral_constant<int, 1>());
  });
}

const Provide provided[] = {
    {embedding_forward, forward}, {embedding_backward, backward}, {embedding_noise, add_noise}};

}  // namespace
}  // namespace nemocube::cuda
