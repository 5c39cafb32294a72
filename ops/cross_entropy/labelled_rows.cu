#include "core/cuda/device.cuh"
#include "core/cuda/pack.cuh"
#include "core/cuda/rows.cuh"
#include "ops/cross_entropy/cross_entropy_kernels.h"

namespace nemocube::cuda {
namespace {

// Copies of rows by bytes, as units of 2, 4, 8 or 16 of them. A row has 2^k threads of a block, as many as it
// has units, at most all.
constexpr int copy_threads = 256;

template <class Unit>
struct RowCopy {
  Rows<Unit> to, from;
  std::int64_t to_rows, units;
  const std::int64_t* list;
  std::int64_t count, from_rows;  // of the list; entries of it that are no rows are `from_rows` or more
  int row_threads;
};

/// The index of `row` in the list, -1 where it is not there.
__device__ std::int64_t index_in(const std::int64_t* list, std::int64_t count, std::int64_t row) {
  std::int64_t low = 0, high = count;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (list[middle] < row)
      low = middle + 1;
    else
      high = middle;
  }
  return low < count && list[low] == row ? low : -1;
}

template <class Unit, bool scatter>
__global__ void __launch_bounds__(copy_threads) copy_rows_kernel(const RowCopy<Unit> t) {
  const int rows_at_once = copy_threads / t.row_threads;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * rows_at_once + static_cast<int>(threadIdx.x) / t.row_threads;
  if (row >= t.to_rows) return;
  std::int64_t source = -1;
  if (scatter)
    source = index_in(t.list, t.count, row);
  else if (row < t.count && t.list[row] < t.from_rows)
    source = t.list[row];
#pragma unroll 1  // unrolled, the loop begins with a division
  for (std::int64_t u = static_cast<int>(threadIdx.x) % t.row_threads; u < t.units; u += t.row_threads)
    t.to.row(row)[u] = source >= 0 ? t.from.row(source)[u] : Unit{};
}

template <int unit_bytes, bool scatter>
void copy_units(const Tensor& to, const Tensor& from, const Tensor& list) {
  using Unit = typename pack_detail::Raw<unit_bytes>::type;
  const auto rows = [](const Tensor& t) {
    const std::int64_t stride = t.rows() > 1 ? t.row_stride() * size_of(t.dtype()) / unit_bytes : 0;
    return Rows<Unit>{static_cast<Unit*>(t.address()), stride};
  };
  RowCopy<Unit> t{.to = rows(to),
                  .from = rows(from),
                  .to_rows = to.rows(),
                  .units = to.cols() * size_of(to.dtype()) / unit_bytes,
                  .list = data_of<std::int64_t>(list),
                  .count = list.numel(),
                  .from_rows = from.rows(),
                  .row_threads = 1};
  while (t.row_threads < copy_threads && t.row_threads < t.units) t.row_threads *= 2;
  launch(scatter ? "cross_entropy scatter" : "cross_entropy gather", copy_rows_kernel<Unit, scatter>,
         blocks_for(t.to_rows, copy_threads / t.row_threads), copy_threads, t);
}

template <bool scatter>
void copy_rows(const Tensor& to, const Tensor& from, const Tensor& list) {
  if (to.numel() == 0) return;
  std::uint64_t together = static_cast<std::uint64_t>(to.cols() * size_of(to.dtype()));
  for (const Tensor* t : {&to, &from}) {
    together |= reinterpret_cast<std::uintptr_t>(t->address());
    if (t->rows() > 1) together |= static_cast<std::uint64_t>(t->row_stride() * size_of(t->dtype()));
  }
  if (together % 16 == 0)
    copy_units<16, scatter>(to, from, list);
  else if (together % 8 == 0)
    copy_units<8, scatter>(to, from, list);
  else if (together % 4 == 0)
    copy_units<4, scatter>(to, from, list);
  else
    copy_units<2, scatter>(to, from, list);
}

// Products of any number of rows cost the same preparation.
std::int64_t rows_of_products(const Tensor& rows) { return rows.numel(); }

const Provide provided[] = {{gather_labelled, copy_rows<false>},
                            {scatter_labelled, copy_rows<true>},
                            {product_rows, rows_of_products}};

}  // namespace
}  // namespace nemocube::cuda
