#include <cmath>
#include <memory>

#include "core/kernels.h"
#include "core/rng.h"
#include "ops/bench.h"
#include "ops/ssd_scan/ssd_scan.h"

namespace nemocube {
namespace {

struct Setup {
  SsdOptions options;
  Sequences sequences;
  Tensor x, dt_raw, B, C, A_log, D, dt_bias, dy;
  std::vector<Tensor> results;  // y, then the gradients in the order of SsdInputs

  Setup(std::int64_t count, std::int64_t length, const SsdOptions& o, DType dtype)
      : options(o), sequences(Sequences::uniform(count, length)) {
    const std::int64_t tokens = count * length, inner = o.heads * o.head_dim,
                       shared = o.groups * o.state_size;
    const auto draw = [&](const Shape& shape, const char* name, double mean, double sigma) {
      Tensor t = Tensor::empty(shape, dtype);
      fill_normal(t, RandomStream(1, name), mean, sigma);
      return t;
    };
    const std::int64_t widths[] = {inner, shared, shared};
    const auto parts = draw({tokens, inner + 2 * shared}, "xBC", 0, 1).split_last(widths);
    x = parts[0];
    B = parts[1];
    C = parts[2];
    dt_raw = draw({tokens, o.heads}, "dt", 0, 1);
    A_log = draw({o.heads}, "A_log", 1, 0.7);
    D = draw({o.heads}, "D", 1, 0.1);
    dt_bias = draw({o.heads}, "dt_bias", -4, 1);
    dy = draw({tokens, inner}, "dy", 0, 1);
  }

  void run(const char* variant, bool backward) {
    KernelChoice choice;
    choice.by_op["ssd_scan"] = variant;
    Tape tape;
    Context ctx;
    ctx.kernels = &choice;
    if (backward) ctx.tape = &tape;
    std::vector<Var> in;
    for (const Tensor& t : {x, dt_raw, B, C, A_log, D, dt_bias})
      in.push_back(backward ? Var::leaf(t) : Var(t));
    const Var y = ssd_scan(ctx, {in[0], in[1], in[2], in[3], in[4], in[5], in[6]}, options, sequences);
    results.assign(1, y.value());
    if (!backward) return;
    tape.backward(y, dy);
    for (const Var& v : in) results.push_back(v.grad());
  }

  /// Against the other variant.
  bool verify(const char* other, double tolerance) {
    const std::vector<Tensor> got = results;
    run(other, got.size() > 1);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto a = got[i].to_vector(), b = results[i].to_vector();
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

std::vector<BenchCase> make(const BenchOptions& options) {
  SsdOptions o{.heads = 16, .head_dim = 64, .groups = 4, .state_size = 64, .chunk_size = 64};
  std::int64_t count = 4, length = 512;
  if (options.small) {
    o = {.heads = 4, .head_dim = 8, .groups = 2, .state_size = 8, .chunk_size = 8};
    length = 24;
  }
  const double tolerance = options.dtype == DType::bf16 ? 0.02 : 1e-4;
  std::vector<BenchCase> cases;
  const auto add = [&](std::int64_t chunk, const char* variant, const char* other) {
    o.chunk_size = chunk;
    auto setup = std::make_shared<Setup>(count, length, o, options.dtype);
    const double tokens = static_cast<double>(count * length),
                 element = static_cast<double>(size_of(options.dtype));
    const double inner = static_cast<double>(o.heads * o.head_dim), q = static_cast<double>(chunk);
    const double shared = static_cast<double>(o.groups * o.state_size),
                 state = static_cast<double>(o.state_size);
    // Products of a forward pass with full squares: C B^T, (C B^T * L) X, H C, X B^T. Backward forms two for
    // each. The triangular ones can be had for little more than half.
    const double flops = tokens * (2 * q * shared + 2 * q * inner + 4 * inner * state);
    const double bytes = tokens * element * (2 * inner + 2 * shared + static_cast<double>(o.heads));
    const std::string shape =
        cat("sequences=", count, " tokens=", length, " heads=", o.heads, " head_dim=", o.head_dim,
            " groups=", o.groups, " state=", o.state_size, " chunk=", chunk);
    const std::string name = variant;
    cases.push_back({name + " forward", shape, bytes, flops, [=] { setup->run(variant, false); },
                     [=] { return setup->verify(other, tolerance); }});
    cases.push_back({name + " forward+backward", shape, 3 * bytes, 3 * flops,
                     [=] { setup->run(variant, true); }, [=] { return setup->verify(other, tolerance); }});
  };
  if (options.small) {
    add(8, "chunked", "recurrent");
  } else {
    for (const std::int64_t chunk : {32, 64}) add(chunk, "chunked", "recurrent");
  }
  add(o.chunk_size, "recurrent", "chunked");
  return cases;
}

const RegisterBench bench("ssd_scan", make);

}  // namespace
}  // namespace nemocube
