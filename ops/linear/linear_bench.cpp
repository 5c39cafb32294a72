#include <cmath>

#include "core/rng.h"
#include "ops/bench.h"
#include "ops/linear/linear.h"

namespace nemocube {
namespace {

Tensor normal(const Shape& shape, DType dtype, const char* name) {
  Tensor t = Tensor::empty(shape, dtype);
  fill_normal(t, RandomStream(1, name), 0, 1);
  return t;
}

// One row against the definition in f64.
bool check_row(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const std::int64_t in = x.cols(), row = x.rows() / 2;
  const auto xv = x.narrow(0, row, 1).to_vector(), wv = weight.to_vector(), bv = bias.to_vector(),
             yv = y.narrow(0, row, 1).to_vector();
  for (std::size_t o = 0; o < yv.size(); ++o) {
    double want = bv[o];
    for (std::size_t i = 0; i < xv.size(); ++i) want += xv[i] * wv[o * xv.size() + i];
    const double rounding = y.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-22;
    const double bound = rounding * std::abs(want) + 4 * 0x1p-24 * static_cast<double>(in + 1);
    if (!(std::abs(yv[o] - want) <= bound)) return false;
  }
  return true;
}

std::vector<BenchCase> make_cases(const BenchOptions& options) {
  const std::int64_t tokens = options.small ? 48 : 2048, in = options.small ? 24 : 512;
  const std::int64_t out = options.small ? 40 : 2048;
  const DType dtype = options.dtype;
  const Tensor x = normal({tokens, in}, dtype, "x"), weight = normal({out, in}, dtype, "weight");
  const Tensor bias = normal({out}, dtype, "bias"), dy = normal({tokens, out}, dtype, "dy");
  const Var leaf = Var::leaf(weight), leaf_bias = Var::leaf(bias);

  BenchCase forward;
  forward.variant = "forward";
  forward.shape = cat("rows=", tokens, " in=", in, " out=", out, " bias");
  forward.bytes = static_cast<double>(x.bytes() + weight.bytes() + bias.bytes() + dy.bytes());
  forward.flops = 2.0 * static_cast<double>(tokens * in) * static_cast<double>(out);
  forward.run = [=] { linear_forward(x, weight, bias); };
  forward.verify = [=] { return check_row(linear_forward(x, weight, bias), x, weight, bias); };

  BenchCase both = forward;
  both.variant = "forward and backward";
  both.bytes = forward.bytes + static_cast<double>(2 * dy.bytes() + 2 * x.bytes() + weight.bytes() +
                                                   2 * weight.numel() * size_of(accumulate_dtype(dtype)));
  both.flops = 3 * forward.flops;
  both.run = [=] {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const Var vx(x, std::make_shared<GradNode>(x.shape(), dtype, false));
    tape.backward(linear(ctx, vx, leaf, leaf_bias), dy);
  };
  return {forward, both};
}

const RegisterBench bench("linear", make_cases);

}  // namespace
}  // namespace nemocube
