#include "ops/deal_columns/deal_columns.h"

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/deal_columns/deal_columns_kernels.h"

namespace nemocube {
namespace {

std::int64_t columns_of(const std::vector<ColumnRange>& ranges) {
  std::int64_t columns = 0;
  for (const ColumnRange& range : ranges) columns += range.columns.size();
  return columns;
}

void check_deal(const ColumnDeal& deal) {
  for (const auto& ranges : deal)
    expect(columns_of(ranges) == columns_of(deal[0]), "deal of ", columns_of(ranges), " and of ",
           columns_of(deal[0]), " columns");
}

Tensor dealt(const std::vector<Tensor>& x, const ColumnDeal& deal) {
  static Zone zone("deal_columns");
  const ZoneTimer timer(zone);
  const Tensor y =
      Tensor::empty({std::ssize(deal) * x[0].dim(0), columns_of(deal[0])}, x[0].dtype(), x[0].device());
  if (y.numel() > 0) deal_columns_kernel(y, x, deal);
  return y;
}

void collect(const std::vector<Tensor>& x, const Tensor& y, const ColumnDeal& deal) {
  static Zone zone("collect_columns");
  const ZoneTimer timer(zone);
  if (y.dim(0) > 0) collect_columns_kernel(x, y, deal);
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
