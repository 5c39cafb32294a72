#include <algorithm>
#include <vector>

#include "core/parallel_for.h"
#include "ops/deal_columns/deal_columns_kernels.h"

namespace nemocube::cpu {
namespace {

/// Rows for one thread: about 64 KiB.
std::int64_t row_grain(std::int64_t columns) { return 1 + 16384 / (1 + columns); }

}  // namespace

void deal_columns(const Tensor& y, const std::vector<Tensor>& x, const ColumnDeal& deal) {
  const std::int64_t rows = x[0].dim(0), ranks = std::ssize(deal);
  visit_float("deal_columns", y.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for(ranks * rows, row_grain(y.cols()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        T* to = y.row<T>(i);
        for (const auto& [matrix, columns] : deal[static_cast<std::size_t>(i / rows)])
          to = std::copy_n(x[matrix].template row<T>(i % rows) + columns.begin, columns.size(), to);
      }
    });
  });
}

void collect_columns(const std::vector<Tensor>& x, const Tensor& y, const ColumnDeal& deal) {
  const std::int64_t rows = y.dim(0) / std::ssize(deal);
  visit_float("collect_columns", y.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    parallel_for(rows, row_grain(y.cols() * std::ssize(deal)), [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::vector<A>> sums;
      for (const Tensor& matrix : x) sums.emplace_back(static_cast<std::size_t>(matrix ? matrix.cols() : 0));
      for (std::int64_t t = begin; t < end; ++t) {
        for (auto& sum : sums) std::ranges::fill(sum, A(0));
        for (std::size_t rank = 0; rank < deal.size(); ++rank) {
          const T* from = y.row<T>(static_cast<std::int64_t>(rank) * rows + t);
          for (const auto& [matrix, range] : deal[rank]) {
            A* to = sums[matrix].data() + range.begin;
            if (x[matrix])
              for (std::int64_t c = 0; c < range.size(); ++c) to[c] += static_cast<A>(from[c]);
            from += range.size();
          }
        }
        for (std::size_t m = 0; m < x.size(); ++m)
          if (x[m])
            std::ranges::transform(sums[m], x[m].template row<T>(t),
                                   [](A sum) { return static_cast<T>(sum); });
      }
    });
  });
}

}  // namespace nemocube::cpu
