#include "parallel/context_parallel/deal_columns.h"

#include <algorithm>

#include "core/parallel_for.h"
#include "ops/contribute.h"

namespace nemocube {
namespace {

std::int64_t width_of(const std::vector<ColumnRange>& ranges) {
  std::int64_t width = 0;
  for (const ColumnRange& range : ranges) width += range.columns.size();
  return width;
}

void check_deal(const ColumnDeal& deal) {
  for (const auto& ranges : deal)
    expect(width_of(ranges) == width_of(deal[0]), "deal of ", width_of(ranges), " and of ", width_of(deal[0]),
           " columns");
}

/// Rows for one thread: about 64 KiB.
std::int64_t row_grain(std::int64_t columns) { return 1 + 16384 / (1 + columns); }

Tensor dealt(const std::vector<Tensor>& x, const ColumnDeal& deal) {
  const std::int64_t rows = x[0].dim(0), ranks = std::ssize(deal);
  const Tensor y = Tensor::empty({ranks * rows, width_of(deal[0])}, x[0].dtype(), x[0].device());
  visit_float("deal_columns", y.dtype(), [&]<class T>(TypeTag<T>) {
    parallel_for(ranks * rows, row_grain(y.cols()), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        T* to = y.row<T>(i);
        for (const auto& [matrix, columns] : deal[static_cast<std::size_t>(i / rows)])
          to = std::copy_n(x[matrix].template row<T>(i % rows) + columns.begin, columns.size(), to);
      }
    });
  });
  return y;
}

/// Writes to each column of x the sum of what is dealt from it. Matrices may be undefined.
void collect(const std::vector<Tensor>& x, const Tensor& y, const ColumnDeal& deal) {
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

}  // namespace

Var deal_columns(Context& ctx, const std::vector<Var>& x, const ColumnDeal& deal) {
  check_deal(deal);
  std::vector<Tensor> values;
  std::vector<std::shared_ptr<GradNode>> nodes;
  bool wants = false;
  for (const Var& matrix : x) {
    values.push_back(matrix.value());
    nodes.push_back(matrix.node());
    wants = wants || ctx.records({&matrix});
  }
  Var y = make_result(dealt(values, deal), wants);
  if (wants)
    ctx.tape->record("deal_columns", [nodes, deal, out = y.node()] {
      if (!out->filled()) return;
      const Tensor dy = out->take();
      std::vector<Tensor> dx;
      for (const auto& node : nodes) dx.push_back(node ? contribution(*node, dy.dtype()) : Tensor());
      collect(dx, dy, deal);
      for (std::size_t m = 0; m < nodes.size(); ++m)
        if (nodes[m]) nodes[m]->add(dx[m]);
    });
  return y;
}

Var collect_columns(Context& ctx, const Var& x, std::int64_t columns, const ColumnDeal& deal) {
  check_deal(deal);
  const Tensor& in = x.value();
  Var y = make_result(Tensor::empty({in.dim(0) / std::ssize(deal), columns}, in.dtype(), in.device()),
                      ctx.records({&x}));
  collect({y.value()}, in, deal);
  if (y.needs_grad())
    ctx.tape->record("collect_columns", [deal, in = x.node(), out = y.node()] {
      if (out->filled()) in->add(dealt({out->take()}, deal));
    });
  return y;
}

}  // namespace nemocube
