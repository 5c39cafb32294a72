#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/gated_rmsnorm/gated_rmsnorm.h"

namespace nemocube::gated_rmsnorm_bench {
namespace {

struct Setup {
  std::int64_t groups;
  GateOrder order;
  Tensor y, z, weight, dout, out, dy, dz;

  Setup(const BenchOptions& o, std::int64_t tokens, std::int64_t channels, std::int64_t group_count,
        GateOrder chosen)
      : groups(group_count), order(chosen) {
    y = bench::normal(o, {tokens, channels}, "y");
    z = bench::normal(o, {tokens, 2 * channels}, "z").narrow(-1, 0, channels);
    weight = bench::normal(o, {channels}, "weight");
    dout = bench::normal(o, {tokens, channels}, "dout");
  }

  void forward() {
    Context ctx;
    out = gated_rmsnorm(ctx, y, z, weight, groups, 1e-5, {}, order).value();
  }

  void both() {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const Var vy = bench::intermediate(y), vz = bench::intermediate(z), vw = Var::leaf(weight);
    const Var result = gated_rmsnorm(ctx, vy, vz, vw, groups, 1e-5, {}, order);
    out = result.value();
    tape.backward(result, dout);
    dy = vy.grad();
    dz = vz.grad();
  }

  /// The last group of the last row in f64.
  bool verify(double tolerance, bool gradients) const {
    const std::int64_t width = y.cols() / groups, c0 = y.cols() - width;
    const auto n = static_cast<std::size_t>(width);
    const auto part = [&](const Tensor& t) {
      return t.narrow(0, t.rows() - 1, 1).narrow(-1, c0, width).to_vector();
    };
    const auto vy = part(y), vz = part(z), go = part(dout), got = part(out);
    const auto w = weight.narrow(0, c0, width).to_vector();
    const bool norm_first = order == GateOrder::norm_first;
    std::vector<double> s(n), g(n);
    double squares = 0;
    for (std::size_t c = 0; c < n; ++c) {
      s[c] = 1 / (1 + std::exp(-vz[c]));
      g[c] = vy[c] * vz[c] * s[c];
      squares += norm_first ? vy[c] * vy[c] : g[c] * g[c];
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    for (std::size_t c = 0; c < n; ++c)
      if (!bench::close(got[c], w[c] * g[c] * r, tolerance)) return false;
    if (!gradients) return true;
    const auto got_dy = part(dy), got_dz = part(dz);
    double mean = 0;
    for (std::size_t c = 0; c < n; ++c) mean += w[c] * go[c] * g[c] * r / static_cast<double>(width);
    for (std::size_t c = 0; c < n; ++c) {
      const double gate = vz[c] * s[c], slope = s[c] * (1 + vz[c] * (1 - s[c]));
      const double dg = r * (w[c] * go[c] - g[c] * r * mean);
      const double want_dy = norm_first ? r * (w[c] * gate * go[c] - vy[c] * r * mean) : dg * gate,
                   want_dz = norm_first ? w[c] * vy[c] * r * go[c] * slope : dg * vy[c] * slope;
      if (!bench::close(got_dy[c], want_dy, tolerance) || !bench::close(got_dz[c], want_dz, tolerance))
        return false;
    }
    return true;
  }
};

std::vector<BenchCase> make(const BenchOptions& options) {
  const bool nano = options.nano || options.emulated;
  const std::int64_t tokens = options.small ? 64 : options.emulated ? 256 : nano ? 8192 : 2048;
  const double tolerance = options.dtype == DType::bf16 ? 0.05 : 1e-4;
  std::vector<BenchCase> list;
  const auto add = [&](const char* name, GateOrder order, std::int64_t channels, std::int64_t groups) {
    auto setup = std::make_shared<Setup>(options, tokens, channels, groups, order);
    const BenchShape shape{{"tokens", tokens}, {"channels", channels}, {"groups", groups}};
    const double y = bench::bytes_of(setup->y);
    // Forward: y and z in, out out. Backward: dout, y and z in, dy and dz out.
    list.push_back({cat(name, "forward"), shape, 3 * y, 0, [setup] { setup->forward(); },
                    [setup, tolerance] { return setup->verify(tolerance, false); }});
    list.push_back({cat(name, "forward+backward"), shape, 8 * y, 0, [setup] { setup->both(); },
                    [setup, tolerance] { return setup->verify(tolerance, true); }});
  };
  // Gate first: channels and groups of Nemotron 3 Nano, on the software GPU, too. Norm first: channels of
  // Falcon-H1 34B, in two groups, as is assumed.
  if (options.small) {
    add("", GateOrder::gate_first, 96, 4);
    add("norm first, ", GateOrder::norm_first, 96, 4);
  } else {
    add("", GateOrder::gate_first, nano ? 4096 : 1024, nano ? 8 : 4);
    add("norm first, ", GateOrder::norm_first, 4096, 2);
  }
  return list;
}

const RegisterBench registration("gated_rmsnorm", make);

}  // namespace
}  // namespace nemocube::gated_rmsnorm_bench
