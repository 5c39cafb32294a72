#include <cmath>

#include "ops/bench_support.h"
#include "ops/linear/linear.h"

namespace nemocube::linear_bench {
namespace {

using bench::bytes_of;
using bench::normal;

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

// One row of dx = dy W and one of dW = dy^T x, in f64.
bool check_gradients(const Tensor& dx, const Tensor& dweight, const Tensor& dy, const Tensor& x,
                     const Tensor& weight) {
  const std::int64_t row = dx.rows() / 2, out = dweight.rows() / 2;
  const auto dyv = dy.narrow(0, row, 1).to_vector(), wv = weight.to_vector();
  const auto column = dy.narrow(1, out, 1).to_vector(), xv = x.to_vector();
  const auto in = static_cast<std::size_t>(x.cols());
  std::vector<double> want_dx(in), want_dw(in);
  for (std::size_t o = 0; o < dyv.size(); ++o)
    for (std::size_t i = 0; i < in; ++i) want_dx[i] += dyv[o] * wv[o * in + i];
  for (std::size_t t = 0; t < column.size(); ++t)
    for (std::size_t i = 0; i < in; ++i) want_dw[i] += column[t] * xv[t * in + i];
  // A sum of n products of normal numbers has a magnitude of about sqrt(n).
  const auto near = [&](const Tensor& got, const std::vector<double>& want, std::int64_t terms) {
    const double rounding = got.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-20;
    const auto values = got.to_vector();
    for (std::size_t i = 0; i < want.size(); ++i)
      if (!(std::abs(values[i] - want[i]) <=
            rounding * (std::abs(want[i]) + std::sqrt(static_cast<double>(terms)))))
        return false;
    return true;
  };
  return near(dx.narrow(0, row, 1), want_dx, dy.cols()) && near(dweight.narrow(0, out, 1), want_dw, x.rows());
}

std::vector<BenchCase> make_cases(const BenchOptions& options) {
  const std::int64_t tokens = options.small      ? 48
                              : options.emulated ? 512
                              : options.nano     ? 8192
                                                 : 2048,
                     in = options.small      ? 24
                          : options.emulated ? 128
                          : options.nano     ? 2688
                                             : 512;
  const std::int64_t out = options.small ? 40 : options.emulated ? 1024 : options.nano ? 3712 : 2048;
  const DType dtype = options.dtype;
  const Tensor x = normal(options, {tokens, in}, "x"), weight = normal(options, {out, in}, "weight");
  const Tensor bias = normal(options, {out}, "bias"), dy = normal(options, {tokens, out}, "dy");
  const Var leaf = Var::leaf(weight), leaf_bias = Var::leaf(bias);

  BenchCase forward;
  forward.variant = "forward";
  forward.shape = {{"rows", tokens}, {"in", in}, {"out", out}};
  forward.bytes = bytes_of(x, weight, bias, dy);  // y is as large as dy
  forward.flops = 2.0 * static_cast<double>(tokens * in) * static_cast<double>(out);
  forward.run = [=] { linear_forward(x, weight, bias); };
  forward.verify = [=] { return check_row(linear_forward(x, weight, bias), x, weight, bias); };

  BenchCase both = forward;
  both.variant = "forward+backward";
  // Backward: dy, x and W in, dx out; dW and db are read and written, because they add.
  both.bytes = forward.bytes + bytes_of(dy, x, weight, x) +
               2 * static_cast<double>((weight.numel() + bias.numel()) * size_of(accumulate_dtype(dtype)));
  both.flops = 3 * forward.flops;
  const auto pass = [=] {
    Tape tape;
    Context ctx{.tape = &tape};
    const Var in_x = bench::intermediate(x);
    tape.backward(linear(ctx, in_x, leaf, leaf_bias), dy);
    return in_x.grad();
  };
  both.run = [=] { pass(); };
  both.verify = [=] {
    leaf.node()->clear();
    const Tensor dx = pass();
    return check_gradients(dx, leaf.grad(), dy, x, weight);
  };
  return {forward, both};
}

const RegisterBench registration("linear", make_cases);

}  // namespace
}  // namespace nemocube::linear_bench
