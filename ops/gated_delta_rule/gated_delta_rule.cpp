#include "ops/gated_delta_rule/gated_delta_rule.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/profile.h"
#include "core/variants.h"
#include "ops/contribute.h"
#include "ops/gated_delta_rule/gated_delta_rule_kernels.h"
#include "ops/reduce.h"

namespace nemocube {

namespace {

DeltaRuleChunks make_chunks(const Sequences& sequences, std::int64_t chunk_size, Device device) {
  // With spare rows all sizes follow from the capacity alone.
  const bool spare = sequences.has_spare_rows();
  const std::int64_t longest = spare ? sequences.tokens() : sequences.longest();
  const std::int64_t length =
      std::clamp<std::int64_t>(longest, 1, std::min(chunk_size, delta_rule_longest_chunk));
  std::vector<std::int64_t> first{0};
  for (std::int64_t i = 0; i < sequences.count(); ++i)
    first.push_back(first.back() + (sequences.length(i) + length - 1) / length);
  const std::int64_t room = sequences.tokens() / length + sequences.count();
  return {length, spare ? room : first.back(), Tensor::from(first, {std::ssize(first)}).to(device)};
}

enum class RuleVariant { chunked, recurrent };
const Variants<RuleVariant> rule_variants("gated_delta_rule", {{RuleVariant::chunked, "chunked"},
                                                               {RuleVariant::recurrent, "recurrent"}});

void check_options(const DeltaRuleOptions& o) {
  require(o.key_heads >= 1 && o.value_heads >= 1 && o.key_dim >= 1 && o.value_dim >= 1,
          "gated_delta_rule: key_heads, value_heads, key_dim and value_dim must be positive, got ",
          o.key_heads, ", ", o.value_heads, ", ", o.key_dim, ", ", o.value_dim);
  require(o.value_heads % o.key_heads == 0, "gated_delta_rule: ", o.value_heads, " value heads cannot share ",
          o.key_heads, " key heads");
  require(o.chunk_size >= 1, "gated_delta_rule: chunk_size must be positive, got ", o.chunk_size);
}

void check_inputs(const DeltaRuleInputs& in, const DeltaRuleOptions& o) {
  const DType dtype = in.v.value().dtype();
  require(in.v.value().ndim() == 2, "gated_delta_rule: v has shape ", in.v.shape(),
          ", want [tokens, channels]");
  require(is_float(dtype), "gated_delta_rule: v is ", dtype, ", want f32, f64 or bf16");
  const std::int64_t tokens = in.v.shape()[0];
  const auto rows = [&](std::string_view name, const Var& x, std::int64_t columns) {
    check_shape(cat("gated_delta_rule: ", name), x.value(), {tokens, columns});
    check_dtype(cat("gated_delta_rule: ", name), x.value(), dtype);
  };
  rows("q", in.q, o.key_heads * o.key_dim);
  rows("k", in.k, o.key_heads * o.key_dim);
  rows("v", in.v, o.value_heads * o.value_dim);
  rows("a", in.a, o.value_heads);
  rows("b", in.b, o.value_heads);
  const auto parameter = [&](std::string_view name, const Tensor& t) {
    check_shape(cat("gated_delta_rule: ", name), t, {o.value_heads});
    require(t.dtype() == dtype || t.dtype() == accumulate_dtype(dtype), "gated_delta_rule: ", name, " is ",
            t.dtype(), " for inputs of ", dtype);
  };
  parameter("A_log", in.A_log.value());
  parameter("dt_bias", in.dt_bias.value());
}

// The tensor for a gradient that the kernel writes. An input that wants no gradient gets one too; its result
// is dropped.
Tensor contribution(const Var& v) {
  const DType dtype = v.value().dtype();
  return v.needs_grad() ? contribution(*v.node(), dtype)
                        : Tensor::empty(v.shape(), dtype, v.value().device());
}

}  // namespace

Var gated_delta_rule(Context& ctx, const DeltaRuleInputs& in, const DeltaRuleOptions& options,
                     const Sequences& sequences, const Tensor* initial_state, Tensor* final_state) {
  static Zone forward_zone("gated_delta_rule/forward"), backward_zone("gated_delta_rule/backward");
  const ZoneTimer timer(forward_zone);
  check_options(options);
  check_inputs(in, options);
  sequences.check("gated_delta_rule", in.v.shape()[0]);
  const DType dtype = in.v.value().dtype(), acc = accumulate_dtype(dtype);
  const Device device = in.v.value().device();
  const Shape state_shape{sequences.count(), options.value_heads, options.key_dim, options.value_dim};
  if (initial_state) {
    check_shape("gated_delta_rule: initial state", *initial_state, state_shape);
    check_dtype("gated_delta_rule: initial state", *initial_state, acc);
  }

  const DeltaRuleProblem problem{
      in.q.value(),
      in.k.value(),
      in.v.value(),
      in.a.value(),
      in.b.value(),
      in.A_log.value().to(acc),
      in.dt_bias.value().to(acc),
      initial_state ? initial_state->as_contiguous() : Tensor(),
      options,
      sequences.on(device),
      sequences.derived<DeltaRuleChunks>(device, {options.chunk_size},
                                         [chunk_size = options.chunk_size, device](const Sequences& s) {
                                           return make_chunks(s, chunk_size, device);
                                         })};
  const RuleVariant variant = rule_variants.chosen(ctx, device);
  const bool records = ctx.records({&in.q, &in.k, &in.v, &in.a, &in.b, &in.A_log, &in.dt_bias});
  Var o = make_result(Tensor::empty(in.v.shape(), dtype, device), records);
  DeltaRuleStates states;
  if (records)
    states.chunk_starts = Tensor::empty(
        {problem.chunks.count, options.value_heads, options.key_dim, options.value_dim}, acc, device);
  if (final_state) states.final = Tensor::empty(state_shape, acc, device);
  if (variant == RuleVariant::recurrent)
    delta_rule_recurrent_forward(problem, o.value(), states);
  else
    delta_rule_chunked_forward(problem, o.value(), states);
  if (final_state) *final_state = states.final;
  if (!records) return o;

  const bool chunks_without_tokens = sequences.has_spare_rows();
  ctx.tape->record("gated_delta_rule", [in, problem, variant, starts = states.chunk_starts, out = o.node(),
                                        chunks_without_tokens] {
    if (!out->filled()) return;
    const ZoneTimer backward_timer(backward_zone);
    const auto sums = [&] {
      const Tensor t = Tensor::empty({problem.chunks.count, problem.options.value_heads},
                                     problem.A_log.dtype(), problem.A_log.device());
      if (chunks_without_tokens) t.zero();
      return t;
    };
    const DeltaRuleGradients g{contribution(in.q),
                               contribution(in.k),
                               contribution(in.v),
                               contribution(in.a),
                               contribution(in.b),
                               sums(),
                               sums()};
    if (variant == RuleVariant::recurrent)
      delta_rule_recurrent_backward(problem, g, out->take(), starts);
    else
      delta_rule_chunked_backward(problem, g, out->take(), starts);
    const auto hand_on = [](const Var& input, const Tensor& gradient) {
      if (input.needs_grad()) input.node()->add(gradient);
    };
    hand_on(in.q, g.q);
    hand_on(in.k, g.k);
    hand_on(in.v, g.v);
    hand_on(in.a, g.a);
    hand_on(in.b, g.b);
    ContributedSums parameters;
    parameters.add(in.A_log.node(), g.A_log, in.A_log.value().dtype());
    parameters.add(in.dt_bias.node(), g.dt_bias, in.dt_bias.value().dtype());
    parameters.contribute();
  });
  return o;
}

}  // namespace nemocube
