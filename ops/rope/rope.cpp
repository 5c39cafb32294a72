#include "ops/rope/rope.h"

#include <bit>
#include <cmath>

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/result_over.h"
#include "ops/rope/rope_kernels.h"

namespace nemocube {
namespace {

void check_heads(const char* name, const Tensor& x, std::int64_t head_dim) {
  require(x.defined(), "rope: ", name, ": got no tensor");
  require(x.ndim() == 2, "rope: ", name, ": want [tokens, heads * head_dim], got shape ", x.shape());
  require(is_float(x.dtype()), "rope: ", name, ": want f32, f64 or bf16, got ", x.dtype());
  require(x.cols() % head_dim == 0, "rope: ", name, ": want a width that is a multiple of head_dim, ",
          head_dim, ", got ", x.cols());
}

void check_inputs(const Tensor& q, const Tensor& k, std::int64_t head_dim,
                  const RotaryFrequencies& frequencies, const Sequences& sequences) {
  require(head_dim > 0, "rope: head_dim: want a positive number, got ", head_dim);
  check_heads("q", q, head_dim);
  check_heads("k", k, head_dim);
  check_dtype("rope: k", k, q.dtype());
  require(k.rows() == q.rows(), "rope: k: want ", q.rows(), " rows as q, got ", k.rows());
  const std::int64_t rotated = 2 * std::ssize(frequencies.inverse);
  require(rotated <= head_dim, "rope: frequencies: want at most ", head_dim / 2,
          ", one for each two channels of a head, got ", rotated / 2);
  for (const double f : frequencies.inverse)
    require(std::isfinite(f), "rope: frequencies: want finite numbers, got ", f);
  require(std::isfinite(frequencies.attention_factor), "rope: attention_factor: want a finite number, got ",
          frequencies.attention_factor);
  sequences.check("rope", q.rows());
}

/// What sequences keep of table_of().
struct RotaryTable {
  Tensor values;
  void refill(const RotaryTable& made) const { values.copy_from(made.values); }
};

/// [T, n] of `dtype`: see rope_table.
Tensor table_of(const Sequences& sequences, const RotaryFrequencies& frequencies, DType dtype,
                Device device) {
  std::vector<std::int64_t> key{static_cast<std::int64_t>(dtype),
                                std::bit_cast<std::int64_t>(frequencies.attention_factor)};
  for (const double f : frequencies.inverse) key.push_back(std::bit_cast<std::int64_t>(f));
  const auto make = [=](const Sequences& rows) {
    const Tensor& positions = rows.positions_on(device);
    expect(positions.numel() == rows.tokens(), "rope: ", positions.numel(), " positions of ", rows.tokens(),
           " rows");
    const std::int64_t pairs = std::ssize(frequencies.inverse);
    const Tensor table = Tensor::empty({rows.tokens(), 2 * pairs}, dtype, device);
    rope_table(table, positions, Tensor::from(frequencies.inverse, {pairs}).to(device),
               frequencies.attention_factor);
    return RotaryTable{table};
  };
  return sequences.derived<RotaryTable>(device, key, make).values;
}

/// The gradient of a result, and where that of the operand is written. Both undefined where there is none.
struct Back {
  Tensor dx, dy;
};
Back back_of(GradNode* node, bool place_is_shared, const std::shared_ptr<GradNode>& out) {
  Back b;
  if (!out || !out->filled()) return b;
  b.dy = out->take();
  b.dx = contribution_over(place_is_shared ? nullptr : node, b.dy);
  return b;
}

}  // namespace

RotatedHeads rope(Context& ctx, Var q, Var k, std::int64_t head_dim, const RotaryFrequencies& frequencies,
                  const Sequences& sequences) {
  check_inputs(q.value(), k.value(), head_dim, frequencies, sequences);
  static Zone forward_zone("rope/forward"), backward_zone("rope/backward");
  const ZoneTimer timer(forward_zone);
  RopeOperands o{.q = q.value(), .k = k.value(), .head_dim = head_dim};
  o.table = table_of(sequences, frequencies, accumulate_dtype(o.q.dtype()), o.q.device());
  const bool q_wants = ctx.records({&q}), k_wants = ctx.records({&k});
  const std::shared_ptr<GradNode> nq = q.node(), nk = k.node();
  q = k = {};  // `o` is now the only holder of what the caller moved in
  o.q_out = result_over(o.q, nq.get());
  o.k_out = result_over(o.k, nk.get());
  rope_rotate(o);
  RotatedHeads out{make_result(o.q_out, q_wants), make_result(o.k_out, k_wants)};
  if (q_wants || k_wants)
    ctx.tape->record("rope", [nq, nk, q_out = out.q.node(), k_out = out.k.node(), table = o.table, head_dim] {
      const ZoneTimer backward_timer(backward_zone);
      const bool one_place = nq == nk;
      const Back of_q = back_of(nq.get(), one_place, q_out), of_k = back_of(nk.get(), one_place, k_out);
      if (!of_q.dy && !of_k.dy) return;
      rope_rotate({.q_out = of_q.dx,
                   .q = of_q.dy,
                   .k_out = of_k.dx,
                   .k = of_k.dy,
                   .table = table,
                   .head_dim = head_dim,
                   .back = true});
      if (of_q.dx) nq->add(of_q.dx);
      if (of_k.dx) nk->add(of_k.dx);
    });
  return out;
}

}  // namespace nemocube
