#include <cmath>
#include <memory>

#include "ops/bench_support.h"
#include "ops/causal_conv1d/causal_conv1d.h"

namespace nemocube::causal_conv1d_bench {
namespace {

struct Setup {
  Tensor x, weight, bias, dy;
  Sequences sequences;
  Tensor y, dx;

  Setup(const BenchOptions& o, std::int64_t count, std::int64_t length, std::int64_t channels)
      : sequences(Sequences::uniform(count, length)) {
    x = bench::normal(o, {count * length, channels + 1024}, "x").narrow(-1, 1024, channels);
    weight = bench::normal(o, {channels, 1, 4}, "weight");
    bias = bench::normal(o, {channels}, "bias");
    dy = bench::normal(o, {count * length, channels}, "dy");
  }

  void forward() {
    Context ctx;
    y = causal_conv1d_silu(ctx, x, weight, bias, sequences).value();
  }

  void both() {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const Var in = bench::intermediate(x), w = Var::leaf(weight), b = Var::leaf(bias);
    const Var out = causal_conv1d_silu(ctx, in, w, b, sequences);
    y = out.value();
    tape.backward(out, dy);
    dx = in.grad();
  }

  /// Pre-activation at token t, channel c, in f64.
  double c(std::int64_t t, std::int64_t channel) const {
    const std::int64_t begin = t - t % sequences.length(0);
    double sum = bias.narrow(0, channel, 1).to_vector()[0];
    const auto w = weight.select(channel).to_vector();
    for (std::int64_t k = 0; k < 4; ++k)
      if (t - 3 + k >= begin)
        sum +=
            w[static_cast<std::size_t>(k)] * x.narrow(0, t - 3 + k, 1).narrow(-1, channel, 1).to_vector()[0];
    return sum;
  }

  bool verify_forward(double tolerance) const {
    for (std::int64_t t = 0; t < x.rows(); t += 1 + x.rows() / 7)
      for (const std::int64_t channel : {std::int64_t{0}, x.cols() / 2, x.cols() - 1}) {
        const double pre = c(t, channel), want = pre / (1 + std::exp(-pre));
        const double got = y.narrow(0, t, 1).narrow(-1, channel, 1).to_vector()[0];
        if (!bench::close(got, want, tolerance)) return false;
      }
    return true;
  }

  bool verify_backward(double tolerance) const {
    const std::int64_t t = x.rows() - 2, channel = x.cols() / 2;
    const auto w = weight.select(channel).to_vector();
    double want = 0;
    for (std::int64_t u = t; u < x.rows(); ++u) {
      const double pre = c(u, channel), s = 1 / (1 + std::exp(-pre));
      const double g = dy.narrow(0, u, 1).narrow(-1, channel, 1).to_vector()[0];
      want += w[static_cast<std::size_t>(3 - (u - t))] * g * s * (1 + pre * (1 - s));
    }
    const double got = dx.narrow(0, t, 1).narrow(-1, channel, 1).to_vector()[0];
    return bench::close(got, want, tolerance);
  }
};

std::vector<BenchCase> make(const BenchOptions& options) {
  const std::int64_t count = options.nano ? 1 : 4,
                     length = options.small      ? 32
                              : options.nano     ? 8192
                              : options.emulated ? 192
                                                 : 512,
                     channels = options.small  ? 48
                                : options.nano ? 6144
                                               : 1536;
  auto setup = std::make_shared<Setup>(options, count, length, channels);
  const double tolerance = options.dtype == DType::bf16 ? 0.02 : 1e-4;
  const BenchShape shape{{"sequences", count}, {"tokens", length}, {"channels", channels}, {"taps", 4}};
  const double x = bench::bytes_of(setup->x), parameters = bench::bytes_of(setup->weight, setup->bias);
  const double gradients = parameters / static_cast<double>(size_of(options.dtype)) *
                           static_cast<double>(size_of(accumulate_dtype(options.dtype)));
  // Forward: x and the parameters in, y out. Backward: x, dy and the weight again, dx and the gradients out.
  const double forward = 2 * x + parameters, backward = 3 * x + bench::bytes_of(setup->weight) + gradients;
  return {
      {"forward", shape, forward, 0, [setup] { setup->forward(); },
       [setup, tolerance] { return setup->verify_forward(tolerance); }},
      {"forward+backward", shape, forward + backward, 0, [setup] { setup->both(); },
       [setup, tolerance] { return setup->verify_forward(tolerance) && setup->verify_backward(tolerance); }}};
}

const RegisterBench registration("causal_conv1d", make);

}  // namespace
}  // namespace nemocube::causal_conv1d_bench
