#pragma once
#include <cmath>
#include <vector>

#include "core/kernel.h"
#include "core/variants.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"
#include "tests/support/compare.h"

/// Inputs, runs and the plain reference of the rule's tests.
namespace nemocube::testing::delta_rule {

struct Case {
  DeltaRuleOptions options;
  Sequences sequences;
  std::vector<Tensor> in;  // q, k, v, a, b, A_log, dt_bias
  Tensor initial;          // may be undefined
};

/// q, k, v, a and b are views of wider rows.
inline Case make_case(const std::vector<std::int64_t>& lengths, const DeltaRuleOptions& o, DType dtype,
                      Device device = Device::cpu) {
  Case c{o, Sequences::of_lengths(lengths), {}, {}};
  const std::int64_t tokens = c.sequences.tokens();
  const auto view = [&](std::int64_t columns, std::uint64_t seed, double scale) {
    return random_tensor({tokens, columns + 5}, dtype, seed, scale).to(device).narrow(-1, 2, columns);
  };
  const auto parameter = [&](std::uint64_t seed, double scale) {
    return random_tensor({o.value_heads}, dtype, seed, scale).to(device);
  };
  c.in = {view(o.key_heads * o.key_dim, 1, 1),
          view(o.key_heads * o.key_dim, 2, 1),
          view(o.value_heads * o.value_dim, 3, 1),
          view(o.value_heads, 4, 1),
          view(o.value_heads, 5, 1.5),
          parameter(6, 0.7),
          parameter(7, 1.5)};
  // Some heads keep their states for many tokens: dt around e^-4.
  c.in[6].narrow(0, 0, (o.value_heads + 1) / 2).fill(-4);
  return c;
}

inline Case with_initial(Case c) {
  const DeltaRuleOptions& o = c.options;
  const DType acc = accumulate_dtype(c.in[2].dtype());
  c.initial = random_tensor({c.sequences.count(), o.value_heads, o.key_dim, o.value_dim}, acc, 8)
                  .to(c.in[2].device());
  return c;
}

inline Case as_dtype(Case c, DType dtype) {
  for (Tensor& t : c.in) t = t.to(dtype);
  if (c.initial) c.initial = c.initial.to(accumulate_dtype(dtype));
  return c;
}

/// A copy on another device.
inline Case on_device(Case c, Device device) {
  for (Tensor& t : c.in) t = t.to(device);
  if (c.initial) c.initial = c.initial.to(device);
  return c;
}

/// Calls test(variant) for the variants that a device has.
template <class Test>
void for_variants(Device device, Test&& test) {
  for (const char* variant : {"chunked", "recurrent"})
    if (has_variant(device, "gated_delta_rule", variant)) test(variant);
}

inline Var call(Context& ctx, const Case& c, const std::vector<Var>& in, Tensor* final_state = nullptr) {
  return gated_delta_rule(ctx, {in[0], in[1], in[2], in[3], in[4], in[5], in[6]}, c.options, c.sequences,
                          c.initial ? &c.initial : nullptr, final_state);
}

inline KernelChoice choose(const char* variant) {
  KernelChoice choice;
  choice.by_op["gated_delta_rule"] = variant;
  check_kernel_choice(choice);
  return choice;
}

/// o, the final states, and the gradients of the seven inputs for d_o (random without one), on the device of
/// the inputs.
inline std::vector<Tensor> run(const Case& c, const char* variant, Tensor d_o = {}) {
  const KernelChoice choice = choose(variant);
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  ctx.kernels = &choice;
  std::vector<Var> in;
  for (const Tensor& t : c.in) in.push_back(Var::leaf(t));
  Tensor state;
  const Var o = call(ctx, c, in, &state);
  if (!d_o) d_o = random_tensor(o.shape(), c.in[2].dtype(), 9).to(o.value().device());
  tape.backward(o, d_o);
  std::vector<Tensor> result{o.value(), state};
  for (const Var& v : in) result.push_back(v.grad());
  return result;
}
/// Without a tape: o and the final states.
inline std::vector<Tensor> run_forward(const Case& c, const char* variant) {
  const KernelChoice choice = choose(variant);
  Context ctx;
  ctx.kernels = &choice;
  Tensor state;
  const Var o = call(ctx, c, std::vector<Var>(c.in.begin(), c.in.end()), &state);
  return {o.value(), state};
}

constexpr std::size_t results = 9;
inline const char* const names[results] = {"o", "state", "dq", "dk", "dv", "da", "db", "dA_log", "ddt_bias"};
/// The dtype of result i: states and the gradients of parameters stay in f32.
inline DType result_dtype(std::size_t i, DType dtype) {
  return i == 1 || i >= 7 ? accumulate_dtype(dtype) : dtype;
}

/// Error of result i of run(), relative to its size. The gradients of parameters are relative to the sizes of
/// the tokens' parts, whose sum may be much smaller.
inline double result_error(std::size_t i, const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  if (i < 7) return relative_error(got[i], want[i]);
  const auto da = want[5].to_vector(), g = got[i].to_vector(), w = want[i].to_vector();
  double error = 0, size = 0;
  for (std::size_t head = 0; head < w.size(); ++head) {
    double parts = 0;
    for (std::size_t k = head; k < da.size(); k += w.size()) parts += std::abs(da[k]);
    error += (g[head] - w[head]) * (g[head] - w[head]);
    size += parts * parts;
  }
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

/// Bound of result_error for results stored in `dtype` and summed over `length` tokens.
inline double rule_tol(DType dtype, std::int64_t length) {
  const Tol t = sum_tol(dtype, length);
  return t.rel + t.abs;
}

/// The recurrence of the header in plain f64 loops: o and the final states.
inline std::vector<Tensor> reference(const Case& c) {
  const DeltaRuleOptions& o = c.options;
  std::vector<std::vector<double>> in;
  for (const Tensor& t : c.in) in.push_back(t.to_vector());
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  const std::int64_t dk = o.key_dim, dv = o.value_dim;
  const auto unit = [&](const std::vector<double>& rows, std::int64_t t, std::int64_t head) {
    std::vector<double> x;
    double squares = 1e-6;
    for (std::int64_t i = 0; i < dk; ++i) {
      x.push_back(rows[at((t * o.key_heads + head) * dk + i)]);
      squares += x.back() * x.back();
    }
    for (double& e : x) e /= std::sqrt(squares);
    return x;
  };
  Tensor out = Tensor::empty({c.sequences.tokens(), o.value_heads * dv}, DType::f64, Device::cpu);
  Tensor states = Tensor::zeros({c.sequences.count(), o.value_heads, dk, dv}, DType::f64, Device::cpu);
  if (c.initial) states.copy_from(c.initial.to(Device::cpu));
  for (std::int64_t i = 0; i < c.sequences.count(); ++i)
    for (std::int64_t t = c.sequences.begin(i); t < c.sequences.end(i); ++t)
      for (std::int64_t h = 0; h < o.value_heads; ++h) {
        const auto q = unit(in[0], t, h / (o.value_heads / o.key_heads));
        const auto k = unit(in[1], t, h / (o.value_heads / o.key_heads));
        const double raw = in[3][at(t * o.value_heads + h)] + in[6][at(h)];
        const double decay = std::exp(-std::exp(in[5][at(h)]) * (raw > 20 ? raw : std::log1p(std::exp(raw))));
        const double beta = 1 / (1 + std::exp(-in[4][at(t * o.value_heads + h)]));
        const auto state = [&](std::int64_t p, std::int64_t n) -> double& {
          return states.row<double>((i * o.value_heads + h) * dk + p)[n];
        };
        for (std::int64_t n = 0; n < dv; ++n) {
          double predicted = 0, read = 0;
          for (std::int64_t p = 0; p < dk; ++p) predicted += decay * state(p, n) * k[at(p)];
          const double v = in[2][at((t * o.value_heads + h) * dv + n)];
          for (std::int64_t p = 0; p < dk; ++p) {
            state(p, n) = decay * state(p, n) + k[at(p)] * beta * (v - predicted);
            read += state(p, n) * q[at(p)];
          }
          out.row<double>(t)[h * dv + n] = read / std::sqrt(static_cast<double>(dk));
        }
      }
  return {out, states};
}

inline const DeltaRuleOptions small{
    .key_heads = 2, .value_heads = 4, .key_dim = 6, .value_dim = 10, .chunk_size = 4};

}  // namespace nemocube::testing::delta_rule
