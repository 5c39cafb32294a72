#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/kernel.h"
#include "core/variants.h"
#include "ops/ssd_scan/ssd_scan.h"
#include "tests/support/compare.h"

/// Inputs, runs and the plain reference of the scan's tests.
namespace nemocube::testing {

struct Case {
  SsdOptions options;
  Sequences sequences;
  std::vector<Tensor> in;  // x, dt_raw, B, C, A_log, D, dt_bias
  Tensor initial;          // may be undefined
};

/// x, B, C and dt_raw are views of wider rows.
inline Case make_case(const std::vector<std::int64_t>& lengths, const SsdOptions& o, DType dtype,
                      Device device = Device::cpu) {
  Case c{o, Sequences::of_lengths(lengths), {}, {}};
  const std::int64_t tokens = c.sequences.tokens(), shared = o.groups * o.state_size;
  const auto view = [&](std::int64_t columns, std::uint64_t seed, double scale) {
    return random_tensor({tokens, columns + 5}, dtype, seed, scale).to(device).narrow(-1, 2, columns);
  };
  const auto parameter = [&](std::uint64_t seed, double scale) {
    return random_tensor({o.heads}, dtype, seed, scale).to(device);
  };
  c.in = {view(o.heads * o.head_dim, 1, 1),
          view(o.heads, 2, 1),
          view(shared, 3, 1),
          view(shared, 4, 1),
          parameter(5, 0.5),
          parameter(6, 1),
          parameter(7, 1.5)};
  return c;
}

inline Case with_initial(Case c) {
  const DType acc = accumulate_dtype(c.in[0].dtype());
  c.initial =
      random_tensor({c.sequences.count(), c.options.heads, c.options.head_dim, c.options.state_size}, acc, 8)
          .to(c.in[0].device());
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
    if (has_variant(device, "ssd_scan", variant)) test(variant);
}

inline Var call(Context& ctx, const Case& c, const std::vector<Var>& in, Tensor* final_state = nullptr) {
  return ssd_scan(ctx, {in[0], in[1], in[2], in[3], in[4], in[5], in[6]}, c.options, c.sequences,
                  c.initial ? &c.initial : nullptr, final_state);
}

inline KernelChoice choose(const char* variant) {
  KernelChoice choice;
  choice.by_op["ssd_scan"] = variant;
  check_kernel_choice(choice);
  return choice;
}

/// y, the final states, and the gradients of the seven inputs for dy (random without one), on the device of
/// the inputs.
inline std::vector<Tensor> run(const Case& c, const char* variant, Tensor dy = {}) {
  const KernelChoice choice = choose(variant);
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  ctx.kernels = &choice;
  std::vector<Var> in;
  for (const Tensor& t : c.in) in.push_back(Var::leaf(t));
  Tensor state;
  const Var y = call(ctx, c, in, &state);
  if (!dy) dy = random_tensor(y.shape(), c.in[0].dtype(), 9).to(y.value().device());
  tape.backward(y, dy);
  std::vector<Tensor> result{y.value(), state};
  for (const Var& v : in) result.push_back(v.grad());
  return result;
}

inline const char* const names[] = {"y", "state", "dx", "ddt_raw", "dB", "dC", "dA_log", "dD", "ddt_bias"};

/// Bound of relative_error for results stored in `dtype` and summed over `length` tokens.
inline double scan_tol(DType dtype, std::int64_t length) {
  const Tol t = sum_tol(dtype, length);
  return t.rel + t.abs;
}

/// The recurrence of the header in plain f64 loops: y and the final states.
inline std::vector<Tensor> reference(const Case& c) {
  const SsdOptions& o = c.options;
  std::vector<std::vector<double>> v;
  for (const Tensor& t : c.in) v.push_back(t.to_vector());
  Tensor y = Tensor::empty({c.sequences.tokens(), o.heads * o.head_dim}, DType::f64, Device::cpu);
  Tensor states =
      Tensor::zeros({c.sequences.count(), o.heads, o.head_dim, o.state_size}, DType::f64, Device::cpu);
  if (c.initial) states.copy_from(c.initial.to(Device::cpu));
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t i = 0; i < c.sequences.count(); ++i)
    for (std::int64_t t = c.sequences.begin(i); t < c.sequences.end(i); ++t)
      for (std::int64_t h = 0; h < o.heads; ++h) {
        const std::int64_t shared = (t * o.groups + h / (o.heads / o.groups)) * o.state_size;
        const double raw = v[1][at(t * o.heads + h)] + v[6][at(h)];
        const double soft = raw > 20 ? raw : std::log1p(std::exp(raw));
        const double dt = std::min(std::max(soft, o.dt_min), o.dt_max);
        const double decay = std::exp(-dt * std::exp(v[4][at(h)]));
        for (std::int64_t p = 0; p < o.head_dim; ++p) {
          double* s = states.row<double>((i * o.heads + h) * o.head_dim + p);
          const double x = v[0][at((t * o.heads + h) * o.head_dim + p)];
          double sum = v[5][at(h)] * x;
          for (std::int64_t n = 0; n < o.state_size; ++n) {
            s[n] = decay * s[n] + dt * x * v[2][at(shared + n)];
            sum += s[n] * v[3][at(shared + n)];
          }
          y.row<double>(t)[h * o.head_dim + p] = sum;
        }
      }
  return {y, states};
}

inline const SsdOptions small{.heads = 4, .head_dim = 3, .groups = 2, .state_size = 5, .chunk_size = 4};

}  // namespace nemocube::testing
