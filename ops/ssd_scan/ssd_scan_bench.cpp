#include <algorithm>
#include <memory>
#include <string_view>

#include "core/kernel.h"
#include "core/variants.h"
#include "ops/bench_support.h"
#include "ops/ssd_scan/ssd_scan.h"

namespace nemocube::ssd_scan_bench {
namespace {

struct Setup {
  SsdOptions options;
  Sequences sequences;
  Tensor x, dt_raw, B, C, A_log, D, dt_bias, dy;
  std::vector<Tensor> results;  // y, then the gradients in the order of SsdInputs

  Setup(std::int64_t count, std::int64_t length, const SsdOptions& o, DType dtype, Device device)
      : options(o), sequences(Sequences::uniform(count, length)) {
    const std::int64_t tokens = count * length, channels = o.heads * o.head_dim,
                       shared = o.groups * o.state_size;
    const auto draw = [&](const Shape& shape, const char* name, double mean, double sigma) {
      return bench::normal(shape, dtype, name, mean, sigma).to(device);
    };
    const std::int64_t columns[] = {channels, shared, shared};
    const auto parts = draw({tokens, channels + 2 * shared}, "xBC", 0, 1).split_last(columns);
    x = parts[0];
    B = parts[1];
    C = parts[2];
    dt_raw = draw({tokens, o.heads}, "dt", 0, 1);
    A_log = draw({o.heads}, "A_log", 1, 0.7);
    D = draw({o.heads}, "D", 1, 0.1);
    dt_bias = draw({o.heads}, "dt_bias", -4, 1);
    dy = draw({tokens, channels}, "dy", 0, 1);
  }

  void run(const char* variant, bool backward) {
    KernelChoice choice;
    choice.by_op["ssd_scan"] = variant;
    Tape tape;
    Context ctx;
    ctx.kernels = &choice;
    if (backward) ctx.tape = &tape;
    std::vector<Var> in;
    for (const Tensor& t : {x, dt_raw, B, C}) in.push_back(backward ? bench::intermediate(t) : Var(t));
    for (const Tensor& t : {A_log, D, dt_bias}) in.push_back(backward ? Var::leaf(t) : Var(t));
    const Var y = ssd_scan(ctx, {in[0], in[1], in[2], in[3], in[4], in[5], in[6]}, options, sequences);
    results.assign(1, y.value());
    if (!backward) return;
    tape.backward(y, dy);
    for (const Var& v : in) results.push_back(v.grad());
  }

  /// Against the other variant, on the CPU.
  bool verify(const char* other, double tolerance) {
    Setup there = *this;
    for (Tensor* t :
         {&there.x, &there.dt_raw, &there.B, &there.C, &there.A_log, &there.D, &there.dt_bias, &there.dy})
      *t = t->to(Device::cpu);
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

/// Chunked: products between pairs of tokens on or below the diagonal, and products with the states that
/// chunks pass on. Backward forms two products for each product of forward.
Flops chunked_flops(std::int64_t count, std::int64_t length, const SsdOptions& o) {
  // In one sequence: pairs of tokens within chunks; tokens that read a state, plus tokens that add to a state
  // that is passed on.
  double pairs = 0, handed_on = 0;
  for (std::int64_t t0 = 0; t0 < length; t0 += o.chunk_size) {
    const auto n = static_cast<double>(std::min(o.chunk_size, length - t0));
    pairs += n * (n + 1) / 2;
    handed_on += (t0 > 0 ? n : 0) + (t0 + o.chunk_size < length ? n : 0);
  }
  const auto channels = static_cast<double>(o.heads * o.head_dim), state = static_cast<double>(o.state_size);
  const auto shared = static_cast<double>(o.groups * o.state_size);
  const double forward =
      2 * static_cast<double>(count) * (pairs * (shared + channels) + handed_on * channels * state);
  return {forward, 2 * forward};
}

/// Recurrent, for each element of the state of a token: decay and update 3, output 2; backward forms the
/// states again (3) and has a multiply-add each for dS, dC, dB, dx and ddt, and a multiplication by the
/// decay.
Flops recurrent_flops(std::int64_t count, std::int64_t length, const SsdOptions& o) {
  const auto elements =
      static_cast<double>(count * length * o.heads * o.head_dim) * static_cast<double>(o.state_size);
  return {5 * elements, 14 * elements};
}

void add_cases(std::vector<BenchCase>& cases, std::int64_t count, std::int64_t length, const SsdOptions& o,
               const BenchOptions& options, const char* variant, const char* other) {
  if (!has_variant(options.device, "ssd_scan", variant)) return;
  const DType dtype = options.dtype;
  const auto setup = std::make_shared<Setup>(count, length, o, dtype, options.device);
  const Setup& s = *setup;
  const bool chunked = std::string_view(variant) == "chunked";
  const Flops flops = (chunked ? chunked_flops : recurrent_flops)(count, length, o);
  // Forward: the inputs in, y out. Backward: the inputs and dy in, their gradients out.
  const double inputs = bench::bytes_of(s.x, s.dt_raw, s.B, s.C), y = bench::bytes_of(s.dy);
  const double forward = inputs + y, backward = 2 * inputs + y;
  const BenchShape shape{{"sequences", count},     {"tokens", length},   {"heads", o.heads},
                         {"head_dim", o.head_dim}, {"groups", o.groups}, {"state", o.state_size},
                         {"chunk", o.chunk_size}};
  const double tolerance = dtype == DType::bf16 ? 0.02 : 1e-4;
  const auto verify = [=] { return setup->verify(other, tolerance); };
  cases.push_back(
      {cat(variant, " forward"), shape, forward, flops.forward, [=] { setup->run(variant, false); }, verify});
  cases.push_back({cat(variant, " forward+backward"), shape, forward + backward,
                   flops.forward + flops.backward, [=] { setup->run(variant, true); }, verify});
}

std::vector<BenchCase> make_cases(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  if (options.device.is_cuda() && !options.small) {
    // The scan of Nemotron 3 Nano.
    const SsdOptions nano{.heads = 64, .head_dim = 64, .groups = 8, .state_size = 128};
    const std::int64_t count = options.emulated || options.nano ? 1 : 4;
    const std::int64_t length = options.nano ? 8192 : options.emulated ? 512 : 4096;
    add_cases(cases, count, length, nano, options, "chunked", "recurrent");
    return cases;
  }
  const SsdOptions o =
      options.small
          ? SsdOptions{.heads = 4, .head_dim = 8, .groups = 2, .state_size = 8, .chunk_size = 8}
          : SsdOptions{.heads = 16, .head_dim = 64, .groups = 4, .state_size = 64, .chunk_size = 64};
  const std::int64_t count = 4, length = options.small ? 24 : 512;
  SsdOptions half = o;
  half.chunk_size = o.chunk_size / 2;
  add_cases(cases, count, length, half, options, "chunked", "recurrent");
  add_cases(cases, count, length, o, options, "chunked", "recurrent");
  add_cases(cases, count, length, o, options, "recurrent", "chunked");
  return cases;
}

const RegisterBench registration("ssd_scan", make_cases);

}  // namespace
}  // namespace nemocube::ssd_scan_bench
