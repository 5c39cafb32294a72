#include "ops/router/router.h"

#include "core/profile.h"
#include "ops/contribute.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_kernels.h"
#include "ops/router/router_losses.h"

namespace nemocube {
namespace {

void check_options(const RouterOptions& o) {
  require(o.experts >= 1 && o.experts <= INT32_MAX, "route: ", o.experts, " experts");
  require(o.top_k >= 1 && o.top_k <= o.experts, "route: top_k ", o.top_k, " of ", o.experts, " experts");
  require(o.groups >= 1 && o.experts % o.groups == 0, "route: ", o.groups, " groups do not divide ",
          o.experts, " experts");
  require(o.top_groups >= 1 && o.top_groups <= o.groups, "route: top_groups ", o.top_groups, " of ", o.groups,
          " groups");
  const std::int64_t left = o.top_groups * (o.experts / o.groups);
  require(left >= o.top_k, "route: top_k ", o.top_k, " of the ", left, " experts in ", o.top_groups,
          " groups");
}

DType check_operands(const Tensor& x, const Tensor& gate, const Tensor& bias, const RouterOptions& o) {
  require(x.defined() && x.ndim() == 2, "route: x: want shape [T, h], got ", x.shape());
  check_shape("route: gate", gate, {o.experts, x.dim(1)});
  for (const Tensor* t : {&x, &gate})
    require(is_float(t->dtype()), "route: want f32, f64 or bf16, got ", t->dtype());
  const DType acc = accumulate_dtype(x.dtype());
  require(acc == accumulate_dtype(gate.dtype()), "route: x is ", x.dtype(), ", gate is ", gate.dtype());
  if (bias.defined()) {
    check_shape("route: correction_bias", bias, {o.experts});
    check_dtype("route: correction_bias", bias, acc);
  }
  return acc;
}

// Whether x goes into products as it is, with the terms of its f32 factors: no copies in f32, and products of
// bf16.
bool mixed_products(const Tensor& x, const Tensor& gate) {
  return x.device().is_cuda() && x.dtype() == DType::bf16 && gate.dtype() == DType::f32;
}

Tensor compute_logits(const Tensor& x, const Tensor& gate, DType acc) {
  Tensor logits = Tensor::empty({x.dim(0), gate.dim(0)}, acc, x.device());
  if (x.dtype() == gate.dtype())
    matmul({logits, Into::set}, x, false, gate, true);
  else if (mixed_products(x, gate))
    matmul_mixed({logits, Into::set}, x, gate);
  else
    matmul({logits, Into::set}, x.to(acc), false, gate.to(acc), true);
  return logits;
}

// Adds op(a) b, formed in the accumulation dtype, to the gradient of `node`.
void give_product(GradNode& node, DType value_dtype, const Tensor& a, bool transpose_a, const Tensor& b) {
  if (node.leaf()) return matmul(node.into(), a, transpose_a, b, false);
  const bool direct = value_dtype == a.dtype();
  const Tensor product = direct ? node.buffer() : Tensor::empty(node.shape(), a.dtype(), a.device());
  matmul({product, Into::set}, a, transpose_a, b, false);
  node.add(direct ? product : product.to(value_dtype));
}

// Returns the terms of dlogits for the gradient of the gate, or nothing.
Tensor give_input_gradient(GradNode& node, const Tensor& x, const Tensor& dlogits, const Tensor& gate) {
  if (!mixed_products(x, gate)) {
    give_product(node, x.dtype(), dlogits, false, gate.to(dlogits.dtype()));
    return {};
  }
  const Output dx = contribution_place(node);
  const Tensor terms = matmul_split(dx, dlogits, gate);
  contribute_written(node, dx);
  return terms;
}

void give_gate_gradient(GradNode& node, const Tensor& gate, const Tensor& dlogits, const Tensor& terms,
                        const Tensor& x) {
  if (!terms) return give_product(node, gate.dtype(), dlogits, true, x.to(dlogits.dtype()));
  const Output dgate = contribution_place(node);
  matmul_terms(dgate, terms, x);
  contribute_written(node, dgate);
}

}  // namespace

RouterSums RouterSums::zeros(std::int64_t layers, std::int64_t experts, Device device) {
  const std::int64_t counts = layers * experts, losses = layers * std::ssize(router_losses);
  const Tensor all = Tensor::zeros({counts + losses}, DType::i64, device);
  return {all.narrow(0, 0, counts).reshape({layers, experts}),
          all.narrow(0, counts, losses).bits_as(DType::f64).reshape({layers, std::ssize(router_losses)})};
}

Routing route(Context& ctx, const Var& x, const Var& gate, const Tensor& correction_bias,
              const RouterOptions& options, const Sequences& sequences, RouterTotals* totals,
              const RouterChoice* replay, const RouterSums& sums) {
  check_options(options);
  const DType acc = check_operands(x.value(), gate.value(), correction_bias, options);
  const std::int64_t tokens = x.value().dim(0);
  sequences.check("route", tokens);

  static Zone forward_zone("router/forward");
  const ZoneTimer timer(forward_zone);
  const Tensor logits = compute_logits(x.value(), gate.value(), acc);
  const Device device = logits.device();
  const Tensor scores =
      uses_scores(options, correction_bias) ? Tensor::empty(logits.shape(), acc, device) : Tensor();
  Routing routing;
  routing.weights =
      make_result(Tensor::empty({tokens, options.top_k}, acc, device), ctx.records({&x, &gate}));
  AuxGradient aux;
  if (replay) {
    check_shape("route: replay of", replay->experts, {tokens, options.top_k});
    routing.choice = *replay;
  } else {
    routing.choice.experts = Tensor::empty({tokens, options.top_k}, DType::i32, device);
    const RouterSums own =
        sums.counts ? sums : RouterSums::zeros(1, options.experts, device).layer(0, options.experts);
    check_shape("route: counts", own.counts, {options.experts});
    check_shape("route: losses", own.losses, {std::ssize(router_losses)});
    routing.counts = own.counts;
    routing.losses = own.losses;
  }
  router_choose(scores, routing.choice.experts, routing.weights.value(), routing.counts, logits,
                correction_bias, options, replay != nullptr, sequences.token_rows_on(device));
  if (replay)
    aux = replayed_gradient(*replay, logits, options, sequences);
  else
    aux = auxiliary_losses(routing, logits, scores, correction_bias, options, sequences, totals);

  if (routing.weights.needs_grad())
    ctx.tape->record("router", [kept = Kept(x), nx = x.node(), gate, experts = routing.choice.experts,
                                scores = backward_uses_scores(options) ? scores : Tensor(),
                                weights = backward_uses_weights(options) ? routing.weights.value() : Tensor(),
                                options, aux, acc, out = routing.weights.node(), tape = ctx.tape] {
      if (!out->filled() && !aux.factors.defined() && !aux.logits.defined()) return;
      static Zone backward_zone("router/backward");
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dweights = out->filled() ? out->take() : Tensor();
      const Tensor dlogits = Tensor::empty({experts.rows(), options.experts}, acc, experts.device());
      router_backward(dlogits, dweights, scores, weights, experts, options, aux);
      const Tensor rows = kept.get();
      Tensor terms;
      if (nx) terms = give_input_gradient(*nx, rows, dlogits, gate.value());
      if (gate.needs_grad())
        tape->weight_work([gate, rows, dlogits, terms] {
          give_gate_gradient(*gate.node(), gate.value(), dlogits, terms, rows);
        });
    });
  return routing;
}

void add_counts(const Tensor& sum, const Tensor& counts) {
  check_dtype("add_counts: sum", sum, DType::i64);
  check_dtype("add_counts: counts", counts, DType::i64);
  check_shape("add_counts: counts", counts, sum.shape());
  add_counts_kernel(sum, counts);
}

void update_expert_bias(const Tensor& bias, const Tensor& counts, double rate, const UpdateGate& gate) {
  require(bias.defined() && bias.ndim() == 1 && (bias.dtype() == DType::f32 || bias.dtype() == DType::f64),
          "update_expert_bias: bias: want shape [E] f32 or f64, got ", bias.dtype(), bias.shape());
  check_dtype("update_expert_bias: counts", counts, DType::i64);
  check_shape("update_expert_bias: counts", counts, bias.shape());
  check_gate(gate);
  update_expert_bias_kernel(bias, counts, rate, gate);
}

}  // namespace nemocube
