#include "ops/select_rows/select_rows.h"

#include <vector>

#include "core/add.h"
#include "ops/contribute.h"

namespace nemocube {
namespace {

/// Calls run(rows of x, rows of y) for each range.
template <class Run>
void for_ranges(const Tensor& x, const Tensor& y, std::span<const Range> ranges, Run&& run) {
  std::int64_t at = 0;
  for (const Range& range : ranges) {
    run(x.narrow(0, range.begin, range.size()), y.narrow(0, at, range.size()));
    at += range.size();
  }
}

void add_to(const Output& dx, const Tensor& dy, std::span<const Range> ranges) {
  if (dx.how == Into::set) dx.to.zero();
  for_ranges(dx.to, dy, ranges, [](const Tensor& to, const Tensor& from) { add_elements(to, to, from); });
}

}  // namespace

Var select_rows(Context& ctx, const Var& x, std::span<const Range> ranges) {
  const Tensor& in = x.value();
  Shape shape = in.shape();
  shape[0] = 0;
  std::int64_t end = 0;
  for (const Range& range : ranges) {
    expect(range.begin >= end && range.begin <= range.end && range.end <= in.dim(0), "select_rows: [",
           range.begin, ", ", range.end, ") after row ", end, " of ", in.dim(0));
    end = range.end;
    shape[0] += range.size();
  }
  const Tensor out = Tensor::empty(shape, in.dtype(), in.device());
  for_ranges(in, out, ranges, [](const Tensor& from, const Tensor& to) { to.copy_from(from); });
  if (!ctx.records({&x})) return out;
  const bool leaf = x.node()->leaf();
  Var y = leaf ? Var::leaf(out) : make_result(out, true);
  ctx.tape->record("select_rows", [tape = ctx.tape, leaf, to = x.node(), from = y.node(),
                                   rows = std::vector(ranges.begin(), ranges.end())] {
    const auto pass = [=] {
      if (from->filled()) contribute(to, [&](const Output& dx) { add_to(dx, from->grad(), rows); });
    };
    if (leaf) return tape->weight_work(pass);
    pass();
  });
  return y;
}

}  // namespace nemocube
