#include "ops/grouped_linear/grouped_linear_kernels.h"
#include "ops/matmul/mma_tiles.cuh"
#include "ops/matmul/tiled_product.cuh"

namespace nemocube::cuda {
namespace {

/// The rows of one group that a block has.
struct GroupRows {
  std::int64_t group = 0, first = 0, count = 0;
};

// Tiles of rows are numbered so that group e begins with tile offsets[e] / rows + e. A group has at least as
// many numbers as tiles, some of them without rows, and a number leads to its group without sums over groups.
// There are at most row_tiles() of them.
template <int rows>
__device__ GroupRows find_rows(const std::int64_t* offsets, std::int64_t groups, std::int64_t tile) {
  std::int64_t begun = 0;  // groups whose first tile is this one or lies before it
  for (std::int64_t first = 0; first < groups; first += blockDim.x) {
    const std::int64_t e = first + threadIdx.x;
    begun += __syncthreads_count(e < groups && offsets[e] / rows + e <= tile);
  }
  const std::int64_t group = begun - 1, begin = offsets[group];
  const std::int64_t row = begin + (tile - begin / rows - group) * rows;
  return {group, row, offsets[group + 1] - row};
}
std::int64_t row_tiles(std::int64_t rows, std::int64_t groups, int tile_rows) {
  return rows / tile_rows + groups;
}

/// y = x W^T or dx = dy W of the rows of each group.
template <class T, class Out>
struct RowProducts {
  Rows<Out> to;
  Rows<const T> from, weight;
  const std::int64_t* offsets;
  std::int64_t groups, length, to_cols, weight_rows;  // weight_rows: of each group
  bool add, aligned;
};

// Neighbouring blocks have the same rows and other columns: the rows, and the weights of a group of several
// tiles, come from the L2 cache then.
template <class Tiles, class T, class Out, bool transpose_weight>
__global__ void __launch_bounds__(Tiles::threads) row_products_kernel(const RowProducts<T, Out> p) {
  extern __shared__ __align__(128) char shared[];
  const std::int64_t across = (p.to_cols + Tiles::cols - 1) / Tiles::cols;
  const std::int64_t column = blockIdx.x % across * Tiles::cols;
  const GroupRows mine = find_rows<Tiles::rows>(p.offsets, p.groups, blockIdx.x / across);
  if (mine.count <= 0) return;
  const T* weight = p.weight.row(mine.group * p.weight_rows);
  const TileFactor<T> a{p.from.row(mine.first), p.from.stride, mine.count, p.aligned},
      b{weight + (transpose_weight ? column * p.weight.stride : column), p.weight.stride, p.to_cols - column,
        p.aligned};
  const TileResult<Out> c{
      {p.to.row(mine.first) + column, p.to.stride}, mine.count, p.to_cols - column, p.add, p.aligned};
  Tiles::template form<true, transpose_weight>(shared, a, b, p.length, c);
}

/// dW = dy^T x over the rows of each group.
template <class T, class Out>
struct WeightProducts {
  Rows<Out> to;
  Rows<const T> dy, x;
  const std::int64_t* offsets;
  std::int64_t out, in;
  bool add, aligned;
};

template <class Tiles, class T, class Out>
__global__ void __launch_bounds__(Tiles::threads) weight_products_kernel(const WeightProducts<T, Out> p) {
  extern __shared__ __align__(128) char shared[];
  const std::int64_t down = (p.out + Tiles::rows - 1) / Tiles::rows,
                     across = (p.in + Tiles::cols - 1) / Tiles::cols;
  const std::int64_t group = blockIdx.x / (down * across), row = blockIdx.x / across % down * Tiles::rows,
                     column = blockIdx.x % across * Tiles::cols;
  const std::int64_t first = p.offsets[group], length = p.offsets[group + 1] - first;
  if (length == 0 && p.add) return;
  const TileFactor<T> a{p.dy.row(first) + row, p.dy.stride, p.out - row, p.aligned},
      b{p.x.row(first) + column, p.x.stride, p.in - column, p.aligned};
  const TileResult<Out> c{
      {p.to.row(group * p.out + row) + column, p.to.stride}, p.out - row, p.in - column, p.add, p.aligned};
  Tiles::template form<false, false>(shared, a, b, length, c);
}

/// Wide tiles read a quarter less than narrow ones, and need more shared memory than devices of compute 8.6
/// and 8.9 have. Of a result of few columns, more of the last tile is empty.
constexpr std::int64_t columns_for_wide = 1024;
bool wide_tiles_fit() {
  return static_cast<std::size_t>(device_limits().shared_bytes) >= MmaTiles<256>::shared_bytes;
}

/// Calls fn(Tiles(), TypeTag<T>(), TypeTag<Out>()) for factors of T and a result of Out, which is T or f32.
template <class Fn>
void visit_tiles(const Tensor& result, const Tensor& a, const Tensor& b, bool wide, Fn&& fn) {
  visit_storage("grouped_linear", a.dtype(), [&]<class T>(TypeTag<T> tag) {
    const auto of_result = [&](auto tiles) {
      if (result.dtype() == a.dtype())
        fn(tiles, tag, tag);
      else if constexpr (!std::is_same_v<T, float>)
        fn(tiles, tag, TypeTag<float>());
    };
    if constexpr (!std::is_same_v<T, float>)
      if (rows_aligned(result, a, b) && (result.cols() | a.cols() | b.cols()) % 8 == 0)
        return wide && wide_tiles_fit() ? of_result(MmaTiles<256>()) : of_result(MmaTiles<128>());
    of_result(FmaTiles());
  });
}

template <bool transpose_weight>
void row_products(const Output& to, const Tensor& from, const Tensor& offsets, const Tensor& weight) {
  const std::int64_t groups = weight.dim(0), cols = to.to.cols();
  if (groups == 0 || to.to.numel() == 0) return;
  const auto queue = [&]<class Tiles, class T, class Out>(Tiles, TypeTag<T>, TypeTag<Out>) {
    const RowProducts<T, Out> p{.to = rows_of<Out>(to.to),
                                .from = const_rows_of<T>(from),
                                .weight = const_rows_of<T>(weight),
                                .offsets = data_of<std::int64_t>(offsets),
                                .groups = groups,
                                .length = from.cols(),
                                .to_cols = cols,
                                .weight_rows = weight.dim(1),
                                .add = to.how == Into::add,
                                .aligned = packs_aligned(to.to, from, weight)};
    const std::int64_t down = row_tiles(from.rows(), groups, Tiles::rows),
                       across = (cols + Tiles::cols - 1) / Tiles::cols;
    launch_shared("grouped product of rows", row_products_kernel<Tiles, T, Out, transpose_weight>,
                  blocks_for(down * across, 1), Tiles::threads, Tiles::shared_bytes, p);
  };
  // Groups of few rows fill a part of a tile: then more tiles occupy the device better.
  visit_tiles(to.to, from, weight, cols >= columns_for_wide && from.rows() >= groups * MmaTiles<256>::rows,
              queue);
}

void forward(const Output& y, const Tensor& x, const Tensor& offsets, const Tensor& weight) {
  row_products<true>(y, x, offsets, weight);
}

void backward_input(const Output& dx, const Tensor& dy, const Tensor& offsets, const Tensor& weight) {
  row_products<false>(dx, dy, offsets, weight);
}

void backward_weight(const Output& dweight, const Tensor& dy, const Tensor& offsets, const Tensor& x) {
  const Tensor& to = dweight.to;
  if (to.numel() == 0) return;
  const auto queue = [&]<class Tiles, class T, class Out>(Tiles, TypeTag<T>, TypeTag<Out>) {
    const WeightProducts<T, Out> p{.to = rows_of<Out>(to),
                                   .dy = const_rows_of<T>(dy),
                                   .x = const_rows_of<T>(x),
                                   .offsets = data_of<std::int64_t>(offsets),
                                   .out = to.dim(1),
                                   .in = to.cols(),
                                   .add = dweight.how == Into::add,
                                   .aligned = packs_aligned(to, dy, x)};
    launch_shared("grouped product of weights", weight_products_kernel<Tiles, T, Out>,
                  blocks_for(to.dim(0) * tiles_of<Tiles>(p.out, p.in), 1), Tiles::threads,
                  Tiles::shared_bytes, p);
  };
  visit_tiles(to, dy, x, to.cols() >= columns_for_wide, queue);
}

const Provide provided[] = {{grouped_linear_forward_kernel, forward},
                            {grouped_linear_backward_input_kernel, backward_input},
                            {grouped_linear_backward_weight_kernel, backward_weight}};

}  // namespace
}  // namespace nemocube::cuda
