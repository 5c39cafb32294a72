#include "ops/scale_columns/scale_columns.h"

#include <algorithm>
#include <cmath>

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/result_over.h"
#include "ops/scale_columns/scale_columns_kernels.h"

namespace nemocube {
namespace {

/// Neighbours of one factor are one part, and parts without columns are left out.
ColumnFactors parts_of(std::span<const ColumnFactor> factors, std::int64_t columns) {
  require(factors.size() <= most_column_factors, "scale_columns: want at most ", most_column_factors,
          " factors, got ", factors.size());
  ColumnFactors parts;
  std::int64_t end = 0;
  for (const ColumnFactor& part : factors) {
    require(part.columns >= 0, "scale_columns: want parts of at least 0 columns, got ", part.columns);
    require(std::isfinite(part.factor), "scale_columns: want finite factors, got ", part.factor);
    if (part.columns == 0) continue;
    end += part.columns;
    const auto last = static_cast<std::size_t>(parts.count);
    if (parts.count > 0 && parts.factors[last - 1] == part.factor) {
      parts.ends[last - 1] = end;
      continue;
    }
    parts.ends[last] = end;
    parts.factors[last] = part.factor;
    ++parts.count;
  }
  require(end == columns, "scale_columns: factors of ", end, " columns for x of ", columns);
  return parts;
}

}  // namespace

Var scale_columns(Context& ctx, Var x, std::span<const ColumnFactor> factors) {
  const Tensor in = x.value();
  require(in.defined(), "scale_columns: x: got no tensor");
  require(is_float(in.dtype()), "scale_columns: x: want f32, f64 or bf16, got ", in.dtype());
  require(in.ndim() > 0, "scale_columns: x: want at least one dimension");
  const ColumnFactors parts = parts_of(factors, in.cols());
  if (std::ranges::all_of(factors, [](const ColumnFactor& part) { return part.factor == 1; })) return x;
  static Zone forward_zone("scale_columns/forward"), backward_zone("scale_columns/backward");
  const ZoneTimer timer(forward_zone);
  const bool wants = ctx.records({&x});
  const std::shared_ptr<GradNode> node = x.node();
  x = {};  // `in` is now the only holder if the caller moved x in
  Var y = make_result(result_over(in, node.get()), wants);
  if (in.numel() > 0) scale_columns_kernel(y.value(), in, parts);
  if (y.needs_grad())
    ctx.tape->record("scale_columns", [parts, node, out = y.node()] {
      if (!out->filled()) return;
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      const Tensor dx = contribution_over(node.get(), dy);
      if (dy.numel() > 0) scale_columns_kernel(dx, dy, parts);
      node->add(dx);
    });
  return y;
}

Var scale(Context& ctx, Var x, double factor) {
  require(x.defined(), "scale: x: got no tensor");
  const ColumnFactor all{x.value().cols(), factor};
  return scale_columns(ctx, std::move(x), std::span(&all, 1));
}

}  // namespace nemocube
