#include "ops/gated_rmsnorm/gated_rmsnorm.h"

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/gated_rmsnorm/gated_rmsnorm_kernels.h"
#include "ops/reduce.h"

namespace nemocube {
namespace {

// The sums over whole groups, from sums over this rank's shares that `write` sets; undefined where groups are
// whole.
template <class Write>
GroupSums sums_over_ranks(const NormGroupPart& part, const Tensor& like, Write&& write) {
  if (!part.reduction) return {};
  const Tensor sums = Tensor::empty(like.shape(), like.dtype(), like.device());
  if (sums.numel() > 0) {
    write(sums);
    part.reduction->sum(sums);
  }
  return {sums, part.ranks};
}

}  // namespace

Var gated_rmsnorm(Context& ctx, const Var& y, const Var& z, const Var& weight, std::int64_t groups,
                  double eps, const NormGroupPart& part, GateOrder order) {
  static Zone forward_zone("gated_rmsnorm/forward"), backward_zone("gated_rmsnorm/backward");
  const ZoneTimer timer(forward_zone);
  const DType dtype = y.value().dtype(), acc = accumulate_dtype(dtype);
  require(y.value().ndim() == 2, "gated_rmsnorm: y has shape ", y.shape(), ", want [tokens, channels]");
  require(is_float(dtype), "gated_rmsnorm: y is ", dtype, ", want f32, f64 or bf16");
  const std::int64_t tokens = y.shape()[0], channels = y.shape()[1];
  require(groups >= 1 && channels >= groups && channels % groups == 0, "gated_rmsnorm: ", channels,
          " channels cannot be cut into ", groups, " groups");
  check_shape("gated_rmsnorm: z", z.value(), y.shape());
  check_dtype("gated_rmsnorm: z", z.value(), dtype);
  const bool shared = order == GateOrder::norm_first && weight.shape() == Shape{channels / groups};
  if (!shared) check_shape("gated_rmsnorm: weight", weight.value(), {channels});
  require(weight.value().dtype() == dtype || weight.value().dtype() == acc, "gated_rmsnorm: weight is ",
          weight.value().dtype(), " for an input of ", dtype);

  Var out = make_result(Tensor::empty(y.shape(), dtype, y.value().device()), ctx.records({&y, &z, &weight}));
  const Tensor inv_rms = Tensor::empty({tokens, groups}, acc, y.value().device());
  const GroupSums squares = sums_over_ranks(
      part, inv_rms, [&](const Tensor& sums) { gated_rmsnorm_squares(sums, y.value(), z.value(), order); });
  gated_rmsnorm_forward(out.value(), inv_rms, y.value(), z.value(), weight.value(), eps, squares, order);
  if (!out.needs_grad()) return out;

  ctx.tape->record("gated_rmsnorm", [part, order, shared, inv_rms, vy = y.value(), vz = z.value(),
                                     vw = weight.value(), ny = y.node(), nz = z.node(), nw = weight.node(),
                                     no = out.node()] {
    if (!no->filled()) return;
    const ZoneTimer backward_timer(backward_zone);
    const Tensor dout = no->take();
    const Tensor dy = ny ? contribution_over(ny.get(), dout) : Tensor();
    const Tensor dz = nz ? contribution(*nz, vz.dtype()) : Tensor();
    const Tensor dw =
        nw ? Tensor::empty({segments_of(vy.rows()), vy.cols()}, inv_rms.dtype(), inv_rms.device()) : Tensor();
    const GroupSums dots = sums_over_ranks(part, inv_rms, [&](const Tensor& sums) {
      gated_rmsnorm_dots(sums, dout, vy, vz, vw, inv_rms, order);
    });
    gated_rmsnorm_backward(dy, dz, dw, dout, vy, vz, vw, inv_rms, dots, order);
    if (ny) ny->add(dy);
    if (nz) nz->add(dz);
    ContributedSums sum;
    // Of a weight that groups share, each group of a segment is a part of its own.
    sum.add(nw, shared && dw ? dw.reshape({dw.numel() / vw.numel(), vw.numel()}) : dw, vw.dtype());
    sum.contribute();
  });
  return out;
}

}  // namespace nemocube
