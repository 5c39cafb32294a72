#include "ops/router/router.h"

#include "core/profile.h"
#include "ops/matmul/matmul.h"
#include "ops/router/router_cpu.h"

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

Tensor compute_logits(const Tensor& x, const Tensor& gate, DType acc) {
  Tensor logits = Tensor::empty({x.dim(0), gate.dim(0)}, acc);
  if (x.dtype() == gate.dtype())
    matmul({logits, Into::set}, x, false, gate, true);
  else
    matmul({logits, Into::set}, x.to(acc), false, gate.to(acc), true);
  return logits;
}

// Adds coef E / (k T^2) c_i to row `row` of the factors, for the T tokens of [begin, end).
template <class T>
void add_factors(const Tensor& factors, std::int64_t row, const Tensor& unbiased, std::int64_t begin,
                 std::int64_t end, double coef, const RouterOptions& o) {
  const Tensor counts = cpu::router_counts(unbiased, o.experts, begin, end);
  const auto tokens = static_cast<double>(end - begin);
  const double each =
      coef * static_cast<double>(o.experts) / (static_cast<double>(o.top_k) * tokens * tokens);
  T* to = factors.row<T>(row);
  for (std::int64_t i = 0; i < o.experts; ++i)
    to[i] += static_cast<T>(each * static_cast<double>(counts.data<std::int64_t>()[i]));
}

Tensor balance_factors(const Tensor& scores, const Tensor& unbiased, const Sequences& sequences, double coef,
                       const RouterOptions& o) {
  std::int64_t filled = 0;
  for (std::int64_t q = 0; q < sequences.count(); ++q) filled += sequences.length(q) > 0 ? 1 : 0;
  Tensor factors = Tensor::zeros({sequences.count(), o.experts}, scores.dtype());
  for (std::int64_t q = 0; q < sequences.count(); ++q) {
    if (sequences.length(q) == 0) continue;
    const auto add = scores.dtype() == DType::f64 ? add_factors<double> : add_factors<float>;
    add(factors, q, unbiased, sequences.begin(q), sequences.end(q), coef / static_cast<double>(filled), o);
  }
  return factors;
}

// to[q, i] = scale (to[q, i] + from[0, i])
template <class T>
void merge_factors(const Tensor& to, const Tensor& from, double scale) {
  for (std::int64_t q = 0; q < to.rows(); ++q)
    for (std::int64_t i = 0; i < to.cols(); ++i)
      to.row<T>(q)[i] =
          static_cast<T>(scale) * (to.row<T>(q)[i] + (from.defined() ? from.row<T>(0)[i] : T{0}));
}

// Fills in the losses of `routing`, returns what the backward pass needs for them.
cpu::AuxGradient auxiliary_losses(Routing& routing, const Tensor& logits, const Tensor& scores,
                                  const Tensor& bias, const RouterOptions& o, const Sequences& sequences) {
  cpu::AuxGradient aux;
  const std::int64_t tokens = scores.rows();
  if (tokens == 0) return aux;
  if (o.aux_loss_coef != 0 || o.seq_aux_loss_coef != 0) {
    Tensor unbiased = routing.experts;
    if (bias.defined() || o.groups > 1) {
      unbiased = Tensor::empty(routing.experts.shape(), DType::i32);
      cpu::router_select(unbiased, scores, Tensor(), {.experts = o.experts, .top_k = o.top_k});
    }
    Tensor batch;
    if (o.aux_loss_coef != 0) {
      const Sequences whole = Sequences::uniform(1, tokens);
      batch = balance_factors(scores, unbiased, whole, o.aux_loss_coef, o);
      routing.aux_loss = cpu::balance_loss(scores, batch, whole);
    }
    aux.sequences = sequences;
    aux.factors = balance_factors(scores, unbiased, sequences, o.seq_aux_loss_coef, o);
    if (o.seq_aux_loss_coef != 0) routing.seq_aux_loss = cpu::balance_loss(scores, aux.factors, sequences);
    const auto merge = scores.dtype() == DType::f64 ? merge_factors<double> : merge_factors<float>;
    merge(aux.factors, batch, o.aux_grad_scale);
  }
  if (o.z_loss_coef != 0) {
    double sum = 0;
    for (const double lse : cpu::log_sums(logits)) sum += lse * lse;
    routing.z_loss = o.z_loss_coef * sum / static_cast<double>(tokens);
    aux.logits = logits;
    aux.z_factor = o.aux_grad_scale * o.z_loss_coef * 2 / static_cast<double>(tokens);
  }
  return aux;
}

// Gives `node` the product op(a) op(b), formed in the accumulation dtype.
void give_product(GradNode& node, DType value_dtype, const Tensor& a, bool transpose_a, const Tensor& b) {
  if (node.leaf()) return matmul(node.into(), a, transpose_a, b, false);
  const bool direct = value_dtype == a.dtype();
  const Tensor product = direct ? node.buffer() : Tensor::empty(node.shape(), a.dtype());
  matmul({product, Into::set}, a, transpose_a, b, false);
  node.add(direct ? product : product.to(value_dtype));
}

}  // namespace

Routing route(Context& ctx, const Var& x, const Var& gate, const Tensor& correction_bias,
              const RouterOptions& options, const Sequences& sequences) {
  check_options(options);
  const DType acc = check_operands(x.value(), gate.value(), correction_bias, options);
  const std::int64_t tokens = x.value().dim(0);
  sequences.check("route", tokens);

  static Zone forward_zone("router/forward");
  const ZoneTimer timer(forward_zone);
  const Tensor logits = compute_logits(x.value(), gate.value(), acc);
  const Tensor scores = Tensor::empty(logits.shape(), acc);
  cpu::router_scores(scores, logits);
  Routing routing;
  routing.experts = Tensor::empty({tokens, options.top_k}, DType::i32);
  cpu::router_select(routing.experts, scores, correction_bias, options);
  routing.counts = cpu::router_counts(routing.experts, options.experts, 0, tokens);
  routing.weights = make_result(Tensor::empty({tokens, options.top_k}, acc), ctx.records({&x, &gate}));
  cpu::router_weights(routing.weights.value(), scores, routing.experts, options);
  const cpu::AuxGradient aux = auxiliary_losses(routing, logits, scores, correction_bias, options, sequences);

  if (routing.weights.needs_grad())
    ctx.tape->record("router", [x, gate, scores, experts = routing.experts, options, aux, acc,
                                out = routing.weights.node()] {
      if (!out->filled() && !aux.factors.defined() && !aux.logits.defined()) return;
      static Zone backward_zone("router/backward");
      const ZoneTimer backward_timer(backward_zone);
      const Tensor dweights = out->filled() ? out->take() : Tensor();
      const Tensor dlogits = Tensor::empty(scores.shape(), acc);
      cpu::router_backward(dlogits, dweights, scores, experts, options, aux);
      if (gate.needs_grad())
        give_product(*gate.node(), gate.value().dtype(), dlogits, true, x.value().to(acc));
      if (x.needs_grad()) give_product(*x.node(), x.value().dtype(), dlogits, false, gate.value().to(acc));
    });
  return routing;
}

void update_expert_bias(const Tensor& bias, const Tensor& counts, double rate) {
  require(bias.defined() && bias.ndim() == 1 && (bias.dtype() == DType::f32 || bias.dtype() == DType::f64),
          "update_expert_bias: bias: want shape [E] f32 or f64, got ", bias.dtype(), bias.shape());
  check_dtype("update_expert_bias: counts", counts, DType::i64);
  check_shape("update_expert_bias: counts", counts, bias.shape());
  const std::int64_t n = bias.numel();
  if (n == 0) return;
  const auto* c = counts.data<std::int64_t>();
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += c[i];
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t share = c[i] * n;
    const double move = share < sum ? rate : share > sum ? -rate : 0;
    if (bias.dtype() == DType::f64)
      bias.data<double>()[i] += move;
    else
      bias.data<float>()[i] += static_cast<float>(move);
  }
}

}  // namespace nemocube
