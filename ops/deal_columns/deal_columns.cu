#include "core/add.h"
#include "core/cuda/module.h"
#include "ops/deal_columns/deal_columns_kernels.h"

namespace nemocube::cuda {
namespace {

/// Calls run(matrix, its columns, the same columns in y) for every range, rank after rank.
template <class Run>
void for_ranges(const Tensor& y, const ColumnDeal& deal, Run&& run) {
  const std::int64_t rows = y.dim(0) / std::ssize(deal);
  for (std::size_t rank = 0; rank < deal.size(); ++rank) {
    const Tensor of_rank = y.narrow(0, static_cast<std::int64_t>(rank) * rows, rows);
    std::int64_t at = 0;
    for (const auto& [matrix, columns] : deal[rank]) {
      run(matrix, columns, of_rank.narrow(1, at, columns.size()));
      at += columns.size();
    }
  }
}

void deal_out(const Tensor& y, const std::vector<Tensor>& x, const ColumnDeal& deal) {
  for_ranges(y, deal, [&](std::size_t matrix, const Range& columns, const Tensor& to) {
    to.copy_from(x[matrix].narrow(1, columns.begin, columns.size()));
  });
}

// The order of the sums is that of the CPU.
void collect(const std::vector<Tensor>& x, const Tensor& y, const ColumnDeal& deal) {
  std::vector<Tensor> sums;
  for (const Tensor& matrix : x)
    sums.push_back(matrix ? Tensor::zeros(matrix.shape(), accumulate_dtype(matrix.dtype()), matrix.device())
                          : Tensor());
  for_ranges(y, deal, [&](std::size_t matrix, const Range& columns, const Tensor& from) {
    if (!x[matrix]) return;
    const Tensor to = sums[matrix].narrow(1, columns.begin, columns.size());
    add_elements(to, to, from);
  });
  for (std::size_t m = 0; m < x.size(); ++m)
    if (x[m]) x[m].copy_from(sums[m]);
}

const Provide provided[] = {{deal_columns_kernel, deal_out}, {collect_columns_kernel, collect}};

}  // namespace
}  // namespace nemocube::cuda
