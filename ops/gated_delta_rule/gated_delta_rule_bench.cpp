#include "ops/gated_delta_rule/gated_delta_rule.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "core/kernel.h"
#include "core/variants.h"
#include "ops/bench_support.h"

namespace nemocube::gated_delta_rule_bench {
namespace {

struct Setup {
  DeltaRuleOptions options;
  Sequences sequences;
  std::vector<Tensor> in;  // in the order of DeltaRuleInputs
  Tensor d_o;
  std::vector<Tensor> results;  // o, then the gradients

  Setup(std::int64_t count, std::int64_t length, const DeltaRuleOptions& o, DType dtype, Device device)
      : options(o), sequences(Sequences::uniform(count, length)) {
    const std::int64_t tokens = count * length, keys = o.key_heads * o.key_dim,
                       values = o.value_heads * o.value_dim;
    const auto draw = [&](const Shape& shape, const char* name, double mean, double sigma) {
      return bench::normal(shape, dtype, name, mean, sigma).to(device);
    };
    const std::int64_t columns[] = {keys, keys, values};
    in = draw({tokens, 2 * keys + values}, "qkv", 0, 1).split_last(columns);
    in.push_back(draw({tokens, o.value_heads}, "a", 0, 1));
    in.push_back(draw({tokens, o.value_heads}, "b", 0, 1));
    in.push_back(draw({o.value_heads}, "A_log", 1, 0.7));
    in.push_back(draw({o.value_heads}, "dt_bias", -4, 1));
    d_o = draw({tokens, values}, "d_o", 0, 1);
  }

  void run(const char* variant, bool backward) {
    KernelChoice choice;
    choice.by_op["gated_delta_rule"] = variant;
    Tape tape;
    Context ctx;
    ctx.kernels = &choice;
    if (backward) ctx.tape = &tape;
    std::vector<Var> vars;
    for (std::size_t i = 0; i < in.size(); ++i)
      vars.push_back(!backward ? Var(in[i]) : i < 5 ? bench::intermediate(in[i]) : Var::leaf(in[i]));
    const Var o = gated_delta_rule(ctx, {vars[0], vars[1], vars[2], vars[3], vars[4], vars[5], vars[6]},
                                   options, sequences);
    results.assign(1, o.value());
    if (!backward) return;
    tape.backward(o, d_o);
    for (const Var& v : vars) results.push_back(v.grad());
  }

  /// Against the other variant, on the CPU.
  bool verify(const char* other, double tolerance) {
    Setup there = *this;
    for (Tensor& t : there.in) t = t.to(Device::cpu);
    there.d_o = d_o.to(Device::cpu);
    there.run(other, results.size() > 1);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto a = results[i].to_vector(), b = there.results[i].to_vector();
      double error = 0, norm = 0;
      for (std::size_t k = 0; k < a.size(); ++k) {
        error += (a[k] - b[k]) * (a[k] - b[k]);
        norm += b[k] * b[k];
      }
      if (!(error <= tolerance * tolerance * norm)) return false;
    }
    return true;
  }
};

/// Floating-point operations of one forward and one backward pass.
struct Flops {
  double forward = 0, backward = 0;
};

/// Chunked: products between pairs of tokens on or below the diagonal, of keys (two for each key head) and of
/// values (two for each value head, one of them the solution of the triangular system); products with the
/// state that a chunk starts from (two), and with the one that it passes on. Backward forms two products for
/// each product of forward.
Flops chunked_flops(std::int64_t count, std::int64_t length, const DeltaRuleOptions& o) {
  double pairs = 0, with_states = 0;  // in one sequence
  for (std::int64_t t0 = 0; t0 < length; t0 += o.chunk_size) {
    const auto n = static_cast<double>(std::min(o.chunk_size, length - t0));
    pairs += n * (n + 1) / 2;
    with_states += (t0 > 0 ? 2 * n : 0) + (t0 + o.chunk_size < length ? n : 0);
  }
  const auto keys = static_cast<double>(o.key_heads * o.key_dim),
             values = static_cast<double>(o.value_heads * o.value_dim);
  const double forward =
      2 * static_cast<double>(count) *
      (pairs * 2 * (keys + values) + with_states * values * static_cast<double>(o.key_dim));
  return {forward, 2 * forward};
}

/// Recurrent, for each element of the state of a token: decay 1, reads by k and q 2 each, update 2; backward
/// forms the states again (5) and has a multiply-add each for dS (twice), dq, dk (twice), the gradient of e
/// and k's read, and for dg, and a multiplication by the decay.
Flops recurrent_flops(std::int64_t count, std::int64_t length, const DeltaRuleOptions& o) {
  const auto elements =
      static_cast<double>(count * length * o.value_heads * o.value_dim) * static_cast<double>(o.key_dim);
  return {7 * elements, 22 * elements};
}

void add_cases(std::vector<BenchCase>& cases, std::int64_t count, std::int64_t length,
               const DeltaRuleOptions& o, const BenchOptions& options, const char* variant,
               const char* other) {
  if (!has_variant(options.device, "gated_delta_rule", variant)) return;
  const DType dtype = options.dtype;
  const auto setup = std::make_shared<Setup>(count, length, o, dtype, options.device);
  const Setup& s = *setup;
  const bool chunked = std::string_view(variant) == "chunked";
  const Flops flops = (chunked ? chunked_flops : recurrent_flops)(count, length, o);
  // Forward: the inputs in, o out. Backward: the inputs and d_o in, their gradients out.
  const double inputs = bench::bytes_of(s.in[0], s.in[1], s.in[2], s.in[3], s.in[4]),
               outputs = bench::bytes_of(s.d_o);
  const double forward = inputs + outputs, backward = 2 * inputs + outputs;
  const BenchShape shape{{"sequences", count},           {"tokens", length},     {"key_heads", o.key_heads},
                         {"value_heads", o.value_heads}, {"key_dim", o.key_dim}, {"value_dim", o.value_dim},
                         {"chunk", o.chunk_size}};
  const double tolerance = dtype == DType::bf16 ? 0.02 : 2e-4;
  const auto verify = [=] { return setup->verify(other, tolerance); };
  cases.push_back(
      {cat(variant, " forward"), shape, forward, flops.forward, [=] { setup->run(variant, false); }, verify});
  cases.push_back({cat(variant, " forward+backward"), shape, forward + backward,
                   flops.forward + flops.backward, [=] { setup->run(variant, true); }, verify});
}

std::vector<BenchCase> make_cases(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  if (options.small) {
    const DeltaRuleOptions o{.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 8, .chunk_size = 8};
    for (const char* variant : {"chunked", "recurrent"})
      add_cases(cases, 4, 24, o, options, variant, variant[0] == 'c' ? "recurrent" : "chunked");
    return cases;
  }
  // The layers of Qwen 3.5 9B, and a quarter of their heads on the CPU.
  DeltaRuleOptions o{.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128};
  if (options.device.is_cuda()) {
    std::int64_t count = 4, length = 4096;
    if (options.emulated) {
      count = o.key_heads = 1;
      o.value_heads = options.nano ? 2 : 1;
      length = options.nano ? 2048 : 128;
    }
    add_cases(cases, count, length, o, options, "chunked", "recurrent");
    return cases;
  }
  o.key_heads /= 4;
  o.value_heads /= 4;
  DeltaRuleOptions half = o;
  half.chunk_size = o.chunk_size / 2;
  add_cases(cases, 2, 512, half, options, "chunked", "recurrent");
  add_cases(cases, 2, 512, o, options, "chunked", "recurrent");
  add_cases(cases, 2, 512, o, options, "recurrent", "chunked");
  return cases;
}

const RegisterBench registration("gated_delta_rule", make_cases);

}  // namespace
}  // namespace nemocube::gated_delta_rule_bench
