#include "ops/permute/permute.h"

#include <limits>
#include <utility>

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/permute/permute_kernels.h"

namespace nemocube {
namespace {

void check_permutation(const char* what, const Permutation& p) {
  require(p.slot.defined() && p.slot.ndim() == 2 && p.slot.dtype() == DType::i32, what,
          ": the permutation wants slot [T, k] i32, got ", p.slot.dtype(), p.slot.shape());
  check_dtype(cat(what, ": source"), p.source, DType::i32);
  require(p.source.ndim() == 1 && p.source.numel() <= p.slot.numel(), what,
          ": the permutation wants source [R], R at most ", p.slot.numel(), ", got ", p.source.shape());
}

void check_range(const char* what, Range here, std::int64_t experts) {
  require(here.begin >= 0 && here.begin <= here.end && here.end <= experts, what, ": experts [", here.begin,
          ", ", here.end, ") of ", experts);
}

void check_row_numbers(const char* what, std::int64_t rows) {
  require(rows <= std::numeric_limits<std::int32_t>::max(), what, ": ", rows,
          " rows do not fit 32-bit row numbers");
}

void check_rows(const char* what, const char* name, const Tensor& x, std::int64_t rows) {
  require(x.defined() && x.ndim() == 2 && x.dim(0) == rows, what, ": ", name, ": want shape [", rows,
          ", d], got ", x.shape());
  require(is_float(x.dtype()), what, ": ", name, ": want f32, f64 or bf16, got ", x.dtype());
}

}  // namespace

Permutation make_permutation(const Tensor& experts, std::int64_t expert_count) {
  return make_permutation(experts, expert_count, {0, expert_count});
}

Permutation make_permutation(const Tensor& experts, std::int64_t expert_count, Range here,
                             std::optional<std::int64_t> rows) {
  check_dtype("make_permutation: experts", experts, DType::i32);
  require(experts.ndim() == 2, "make_permutation: experts: want shape [T, k], got ", experts.shape());
  require(expert_count >= 0, "make_permutation: ", expert_count, " experts");
  check_range("make_permutation", here, expert_count);
  check_row_numbers("make_permutation", experts.numel());
  const Device device = experts.device();
  const Tensor offsets = Tensor::empty({here.size() + 1}, DType::i64, device);
  if (here.size() == expert_count) {
    rows = experts.numel();
  } else if (!rows) {
    expert_offsets(offsets, experts, expert_count, here);
    rows = offsets.select(here.size()).item<std::int64_t>();
  }
  const Permutation p{offsets, Tensor::empty({*rows}, DType::i32, device),
                      Tensor::empty(experts.shape(), DType::i32, device)};
  order_rows(p, experts, expert_count, here);
  return p;
}

Permutation merge_by_expert(const Tensor& ends, Range here, std::int64_t rows) {
  check_dtype("merge_by_expert: ends", ends, DType::i64);
  require(ends.ndim() == 2, "merge_by_expert: ends: want shape [sources, E], got ", ends.shape());
  check_range("merge_by_expert", here, ends.dim(1));
  check_row_numbers("merge_by_expert", rows);
  const Permutation p{Tensor::empty({here.size() + 1}, DType::i64, ends.device()),
                      Tensor::empty({rows}, DType::i32, ends.device()),
                      Tensor::empty({rows, 1}, DType::i32, ends.device())};
  merge_by_expert_kernel(p, ends, here);
  return p;
}

Permutation inverse(const Permutation& p) {
  check_permutation("inverse", p);
  const std::int64_t tokens = p.slot.dim(0);
  require(p.slot.dim(1) == 1 && p.source.numel() == tokens, "inverse: want one row for each token, got ",
          p.source.numel(), " rows of ", tokens, " tokens with ", p.slot.dim(1), " choices each");
  return {{}, p.slot.reshape({tokens}), p.source.reshape({tokens, 1})};
}

Var permute(Context& ctx, const Var& x, const Permutation& permutation) {
  check_permutation("permute", permutation);
  check_rows("permute", "x", x.value(), permutation.slot.dim(0));
  static Zone forward_zone("permute/forward");
  const ZoneTimer timer(forward_zone);
  Var y = make_result(
      Tensor::empty({permutation.source.numel(), x.value().cols()}, x.value().dtype(), x.value().device()),
      ctx.records({&x}));
  gather_rows(y.value(), x.value(), permutation);
  if (y.needs_grad())
    ctx.tape->record("permute", [permutation, in = x.node(), out = y.node()] {
      if (!out->filled()) return;
      static Zone backward_zone("permute/backward");
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      const Output dx = contribution_place(*in);
      combine_rows(dx, dy, Tensor(), permutation);
      contribute_written(*in, dx);
    });
  return y;
}

Var unpermute(Context& ctx, const Var& rows, const Var& weights, const Permutation& permutation) {
  check_permutation("unpermute", permutation);
  const Tensor& in = rows.value();
  check_rows("unpermute", "rows", in, permutation.source.numel());
  check_shape("unpermute: weights", weights.value(), permutation.slot.shape());
  check_dtype("unpermute: weights", weights.value(), accumulate_dtype(in.dtype()));
  static Zone forward_zone("unpermute/forward");
  const ZoneTimer timer(forward_zone);
  Var y = make_result(Tensor::empty({permutation.slot.dim(0), in.cols()}, in.dtype(), in.device()),
                      ctx.records({&rows, &weights}));
  combine_rows({y.value(), Into::set}, in, weights.value(), permutation);
  if (y.needs_grad())
    ctx.tape->record("unpermute", [permutation, rows, weights, out = y.node()] {
      if (!out->filled()) return;
      static Zone backward_zone("unpermute/backward");
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dy = out->take();
      const auto output = [](GradNode* node) {
        if (!node) return Output{};
        return node->leaf() ? node->into() : Output{node->buffer(), Into::set};
      };
      const Output drows = output(rows.node().get()), dweights = output(weights.node().get());
      combine_rows_backward(drows, dweights, dy, rows.value(), weights.value(), permutation);
      for (const auto& [node, to] : {std::pair{rows.node(), drows.to}, {weights.node(), dweights.to}})
        if (node && !node->leaf()) node->add(to);
    });
  return y;
}

}  // namespace nemocube
