#include "ops/layernorm/layernorm.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

constexpr double eps = 1e-5;

struct Operands {
  Tensor x, residual, weight, bias, dy, d_sum;  // residual, bias and d_sum may be undefined
};

struct Outcome {
  Tensor sum, y, dx, dw, db;
};

/// The formulas, f64. An undefined d_sum or bias counts as zero, an undefined residual as absent.
Outcome reference(const Operands& o) {
  const auto cols = static_cast<std::size_t>(o.x.cols());
  const auto n = static_cast<double>(cols);
  auto s = o.x.to_vector();
  if (o.residual) {
    const auto other = o.residual.to_vector();
    for (std::size_t i = 0; i < s.size(); ++i) s[i] += other[i];
    s = Tensor::from(s, o.x.shape()).to(o.x.dtype()).to_vector();
  }
  const auto w = o.weight.to_vector(), g = o.dy.to_vector();
  const auto b = o.bias ? o.bias.to_vector() : std::vector<double>(cols);
  auto dx = o.d_sum ? o.d_sum.to_vector() : std::vector<double>(s.size());
  std::vector<double> y(s.size()), dw(cols), db(cols);
  for (std::size_t first = 0; first < s.size(); first += cols) {
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < cols; ++c) mean += s[first + c] / n;
    for (std::size_t c = 0; c < cols; ++c) variance += std::pow(s[first + c] - mean, 2) / n;
    const double deviation = std::sqrt(variance + eps);
    double mean_u = 0, mean_un = 0;
    for (std::size_t c = 0; c < cols; ++c) {
      const double normed = (s[first + c] - mean) / deviation, up = g[first + c];
      y[first + c] = normed * w[c] + b[c];
      dw[c] += up * normed;
      db[c] += up;
      mean_u += w[c] * up / n;
      mean_un += w[c] * up * normed / n;
    }
    for (std::size_t c = 0; c < cols; ++c)
      dx[first + c] +=
          (w[c] * g[first + c] - mean_u - (s[first + c] - mean) / deviation * mean_un) / deviation;
  }
  return {Tensor::from(s, o.x.shape()), Tensor::from(y, o.x.shape()), Tensor::from(dx, o.x.shape()),
          Tensor::from(dw, o.weight.shape()), Tensor::from(db, o.weight.shape())};
}

struct Recorded {
  Recorded() { ctx.tape = &tape; }
  Tape tape;
  Context ctx;
};

Var intermediate(const Tensor& t) {
  return Var(t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false));
}

/// layernorm, or residual_layernorm where there is a residual, forward and backward.
Outcome run(const Operands& o) {
  Recorded r;
  const Var x = intermediate(o.x), w = Var::leaf(o.weight);
  const Var b = o.bias ? Var::leaf(o.bias) : Var();
  const auto db = [&] { return o.bias ? b.grad() : Tensor(); };
  if (!o.residual) {
    const Var y = layernorm(r.ctx, x, w, b, eps);
    r.tape.backward(y, o.dy);
    return {{}, y.value(), x.node()->grad(), w.grad(), db()};
  }
  const Var other = intermediate(o.residual);
  const ResidualNorm out = residual_layernorm(r.ctx, x, other, w, b, eps);
  const std::vector<Var> outputs{out.normed, out.sum};
  const std::vector<Tensor> gradients{o.dy, o.d_sum};
  const std::size_t count = o.d_sum ? 2 : 1;
  r.tape.backward(std::span(outputs).first(count), std::span(gradients).first(count));
  CHECK_BITS(x.node()->grad(), other.node()->grad());
  return {out.sum.value(), out.normed.value(), x.node()->grad(), w.grad(), db()};
}

Operands random_operands(std::int64_t rows, std::int64_t cols, DType dtype) {
  std::uint64_t seed = 0;
  const auto random = [&](const Shape& shape) { return random_tensor(shape, dtype, ++seed); };
  return {random({rows, cols}), random({rows, cols}), random({cols}),
          random({cols}),       random({rows, cols}), random({rows, cols})};
}

/// fn of every operand that is defined.
template <class Fn>
Operands each(const Operands& o, Fn&& fn) {
  const auto one = [&](const Tensor& t) { return t ? fn(t) : Tensor(); };
  return {one(o.x), one(o.residual), one(o.weight), one(o.bias), one(o.dy), one(o.d_sum)};
}
Operands on(const Operands& o, Device device) {
  return each(o, [&](const Tensor& t) { return t.to(device); });
}

void check_close(const Outcome& got, const Outcome& want, DType dtype, std::int64_t rows, std::int64_t cols) {
  // bf16: y and sum are rounded once, the gradient too. Sums of n terms near 1 enter through mean and inv_std
  // only.
  const Tol tol = dtype == DType::bf16 ? Tol{2 * 0x1p-8, 0x1p-8} : sum_tol(dtype, cols, 8);
  // With one or two columns, n does not depend on the size of x. The gradient is then a difference of equal
  // numbers of the size of inv_std.
  const Tol dx_tol = {tol.rel, (cols <= 2 ? 1e3 : 8) * tol.abs};
  const Tol sums_tol = sum_tol(dtype == DType::bf16 ? DType::f32 : dtype, rows + cols, 8);
  if (got.sum) CHECK_CLOSE(got.sum, want.sum, (Tol{dtype == DType::f32 ? 0x1p-24 : 0, 0}));
  CHECK_CLOSE(got.y, want.y, tol);
  CHECK_CLOSE(got.dx, want.dx, dx_tol);
  CHECK_CLOSE(got.dw, want.dw, sums_tol);
  if (got.db) CHECK_CLOSE(got.db, want.db, sums_tol);
}

void check_same_bits(const Outcome& a, const Outcome& b) {
  CHECK_BITS(a.sum, b.sum);
  CHECK_BITS(a.y, b.y);
  CHECK_BITS(a.dx, b.dx);
  CHECK_BITS(a.dw, b.dw);
  CHECK_BITS(a.db, b.db);
}

}  // namespace

TEST_CASE("layernorm: against the formulas" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    // Widths on CUDA: one column, packs with and without a rest, every block size, with and without columns
    // beyond those in registers.
    const bool on_cpu = device == Device::cpu;
    const std::vector<std::int64_t> all_rows =
        on_cpu ? std::vector<std::int64_t>{0, 1, 2, 63, 64, 65, 131} : std::vector<std::int64_t>{0, 1, 65};
    const std::vector<std::int64_t> all_cols =
        on_cpu ? std::vector<std::int64_t>{1, 2, 15, 16, 17, 31, 32, 33, 64, 251}
               : std::vector<std::int64_t>{1, 16, 33, 251, 1000};
    for (const std::int64_t rows : all_rows)
      for (const std::int64_t cols : all_cols) {
        CAPTURE(rows);
        CAPTURE(cols);
        const Operands all = random_operands(rows, cols, dtype);
        Operands no_sum = all, no_residual = all;
        no_sum.d_sum = Tensor();
        no_residual.residual = no_residual.d_sum = Tensor();
        Operands no_bias = no_residual;
        no_bias.bias = Tensor();
        for (const Operands& o : {all, no_sum, no_residual, no_bias}) {
          CAPTURE(o.residual.defined());
          CAPTURE(o.bias.defined());
          check_close(run(on(o, device)), reference(o), dtype, rows, cols);
        }
      }
  });
}

TEST_CASE("layernorm: a mean that is large against the spread" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    // The mean of x^2 less the square of the mean would lose the variance: 2^24 has no f32 neighbours closer
    // than 1.
    Operands o = random_operands(3, 100, DType::f32);
    o.residual = o.d_sum = Tensor();
    auto x = o.x.to_vector();
    for (double& v : x) v = 4096 + std::round(v * 256) / 256;
    o.x = Tensor::from(x, o.x.shape()).to(DType::f32);
    const Outcome got = run(on(o, device)), want = reference(o);
    const Tol tol{1e-3, 4096 * 4 * 0x1p-23};  // mean is rounded at 4096
    CHECK_CLOSE(got.y, want.y, tol);
    CHECK_CLOSE(got.dx, want.dx, tol);
  }
}

TEST_CASE("layernorm: against finite differences") {
  const Operands o = random_operands(5, 7, DType::f64);
  using Inputs = std::vector<Var>;
  for (const std::vector<bool>& wants : {std::vector<bool>{},
                                         {true, false, false},
                                         {false, true, false},
                                         {false, false, true},
                                         {false, true, true}}) {
    GradCheckOptions options;
    options.wants = wants;
    CHECK_GRADIENTS(
        [](Context& ctx, const Inputs& v) { return Inputs{layernorm(ctx, v[0], v[1], v[2], 0.1)}; },
        {o.x, o.weight, o.bias}, options);
  }
  CHECK_GRADIENTS([](Context& ctx, const Inputs& v) { return Inputs{layernorm(ctx, v[0], v[1], {}, 0.1)}; },
                  {o.x, o.weight});
  for (const std::vector<bool>& wants : {std::vector<bool>{},
                                         {true, false, false, false},
                                         {false, true, false, false},
                                         {false, false, true, false},
                                         {false, false, false, true}})
    for (const bool use_sum : {true, false}) {
      CAPTURE(use_sum);
      GradCheckOptions options;
      options.wants = wants;
      CHECK_GRADIENTS(
          [&](Context& ctx, const Inputs& v) {
            const ResidualNorm r = residual_layernorm(ctx, v[0], v[1], v[2], v[3], 0.1);
            return use_sum ? Inputs{r.normed, r.sum} : Inputs{r.normed};
          },
          {o.x, o.residual, o.weight, o.bias}, options);
    }
  // x added to itself, and a chain of two blocks that shares the stream.
  CHECK_GRADIENTS(
      [](Context& ctx, const Inputs& v) {
        const ResidualNorm a = residual_layernorm(ctx, v[0], v[0], v[1], v[2], 0.1);
        const ResidualNorm b = residual_layernorm(ctx, a.normed, a.sum, v[1], v[2], 0.1);
        return Inputs{b.normed, b.sum};
      },
      {o.x, o.weight, o.bias});
}

TEST_CASE("layernorm: only the sum is used" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Operands o = on(random_operands(3, 4, DType::f32), device);
    Recorded r;
    const Var x = Var::leaf(o.x), other = Var::leaf(o.residual), w = Var::leaf(o.weight),
              b = Var::leaf(o.bias);
    r.tape.backward(residual_layernorm(r.ctx, x, other, w, b, eps).sum, o.d_sum);
    CHECK_BITS(x.grad(), o.d_sum);
    CHECK_BITS(other.grad(), o.d_sum);
    CHECK_FALSE(w.node()->filled());
    CHECK_FALSE(b.node()->filled());
  }
}

TEST_CASE("layernorm: bf16 rounds once, after the bias" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Operands o = random_operands(9, 40, DType::bf16);
    Context ctx;
    const auto y =
        layernorm(ctx, o.x.to(device), o.weight.to(device), o.bias.to(device), eps).value().to_vector();
    const auto want = reference({o.x, {}, o.weight, o.bias, o.dy, {}}).y.to_vector();
    int off = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
      off += y[i] != static_cast<double>(bf16(static_cast<float>(want[i])));
    CHECK(off <= 1);  // arithmetic is in f32: a tie may fall the other way
  }
}

TEST_CASE("layernorm: rows that are wider than a block's registers, and of every alignment, on cuda" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [start, cols] :
         {std::pair<std::int64_t, std::int64_t>{0, 17000}, {8, 8300}, {0, 4104}, {1, 2100}, {8, 27}}) {
      CAPTURE(dtype);
      CAPTURE(start);
      CAPTURE(cols);
      const auto window = [start = start, cols = cols](const Operands& o) {
        return each(o, [&](const Tensor& t) { return t.narrow(-1, start, cols); });
      };
      const Operands o = random_operands(3, 17008, dtype);
      const Operands there = window(on(o, Device::cuda));
      const Outcome got = run(there);
      check_close(got, reference(window(o)), dtype, 3, cols);
      check_same_bits(run(there), got);
    }
}

TEST_CASE("layernorm: bits do not depend on the number of threads") {
  const int before = omp_get_max_threads();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Operands o = random_operands(700, 96, dtype);
    omp_set_num_threads(1);
    const Outcome one = run(o);
    omp_set_num_threads(3);
    const Outcome three = run(o);
    omp_set_num_threads(before);
    check_same_bits(one, three);
  }
}

TEST_CASE("layernorm: strided rows, gradients into windows, more dimensions" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const std::vector<std::int64_t> widths{24, 8};
    const Tensor wide = random_tensor({10, 32}, DType::f32, 11).to(device);
    Operands o = on(random_operands(10, 24, DType::f32), device);
    o.x = wide.narrow(-1, 0, 24).clone();
    o.residual = o.d_sum = Tensor();
    const Outcome want = run(o);
    {
      Recorded r;
      const Var x = Var::leaf(wide);
      const Var y = layernorm(r.ctx, split_last(r.ctx, x, widths)[0], o.weight, o.bias, eps);
      const Tensor wide_dy = Tensor::empty({10, 30}, DType::f32, device);
      wide_dy.narrow(-1, 3, 24).copy_from(o.dy);
      r.tape.backward(y, wide_dy.narrow(-1, 3, 24));
      CHECK_BITS(y.value(), want.y);
      CHECK_BITS(x.grad().narrow(-1, 0, 24), want.dx);
      for (const double g : x.grad().narrow(-1, 24, 8).to_vector()) CHECK(g == 0);
    }
    const Operands deep{o.x.reshape({2, 5, 24}), {}, o.weight, o.bias, o.dy.reshape({2, 5, 24}), {}};
    const Outcome got = run(deep);
    CHECK(got.y.shape() == Shape{2, 5, 24});
    CHECK_BITS(got.dx.reshape({10, 24}), want.dx);
  }
}

TEST_CASE("layernorm: a gradient that others hold is not overwritten" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Operands o = on(random_operands(4, 8, DType::f32), device);
    const Tensor keep_dy = o.dy.clone(), keep_d_sum = o.d_sum.clone();
    const Outcome want = run(o);
    CHECK_BITS(o.dy, keep_dy);
    CHECK_BITS(o.d_sum, keep_d_sum);
    // A gradient that nobody else holds gives its place to the result; the values are the same.
    Recorded r;
    const Var x = intermediate(o.x), other = intermediate(o.residual);
    const ResidualNorm out = residual_layernorm(r.ctx, x, other, o.weight, o.bias, eps);
    out.sum.node()->add(o.d_sum.clone());
    const void* place = out.sum.node()->grad().address();
    out.normed.node()->add(o.dy);
    r.tape.backward(Var(o.x), o.x);
    CHECK(x.node()->grad().address() == place);
    CHECK_BITS(x.node()->grad(), want.dx);
    CHECK_BITS(other.node()->grad(), want.dx);
    CHECK_BITS(o.dy, keep_dy);
    Recorded plain;
    const Var in = intermediate(o.x);
    plain.tape.backward(layernorm(plain.ctx, in, o.weight, o.bias, eps), o.dy.clone());
    CHECK_BITS(in.node()->grad(), run({o.x, {}, o.weight, o.bias, o.dy, {}}).dx);
  }
}

TEST_CASE("layernorm: rows of equal elements, NaN, parameters that are not leaves" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    Context ctx;
    const Operands o = on(random_operands(2, 4, DType::f32), device);
    const Tensor x = Tensor::empty({2, 4}, DType::f32, device);
    x.fill(3);
    const Tensor y = layernorm(ctx, x, o.weight, o.bias, eps).value();
    for (const std::int64_t row : {0, 1}) CHECK_BITS(y.narrow(0, row, 1).reshape({4}), o.bias);
    x.narrow(0, 0, 1).narrow(1, 1, 1).fill(std::nan(""));
    const Tensor with_nan = layernorm(ctx, x, o.weight, o.bias, eps).value();
    for (const double v : with_nan.narrow(0, 0, 1).to_vector()) CHECK(std::isnan(v));
    CHECK_BITS(with_nan.narrow(0, 1, 1).reshape({4}), o.bias);
    Recorded r;
    const Var w = intermediate(o.weight), b = intermediate(o.bias);
    r.tape.backward(layernorm(r.ctx, o.x, w, b, eps), o.dy);
    const Outcome want = run({o.x, {}, o.weight, o.bias, o.dy, {}});
    CHECK_BITS(w.node()->grad(), want.dw);
    CHECK_BITS(b.node()->grad(), want.db);
  }
}

TEST_CASE("layernorm: errors") {
  Context ctx;
  const Operands o = random_operands(3, 4, DType::f32);
  const Tensor &x = o.x, &w = o.weight, &b = o.bias;
  CHECK_THROWS_AS(layernorm(ctx, Tensor(), w, b, eps), Error);
  CHECK_THROWS_AS(layernorm(ctx, x, Tensor(), b, eps), Error);
  CHECK_THROWS_AS(layernorm(ctx, Tensor::scalar(1, DType::f32, Device::cpu), w, b, eps), Error);
  CHECK_THROWS_AS(layernorm(ctx, Tensor::zeros({3, 4}, DType::i32, Device::cpu), w, b, eps), Error);
  const auto empty = [](const Shape& shape) { return Tensor::zeros(shape, DType::f32, Device::cpu); };
  CHECK_THROWS_AS(layernorm(ctx, empty({3, 0}), empty({0}), empty({0}), eps), Error);
  CHECK_THROWS_AS(layernorm(ctx, x, w.narrow(0, 0, 3), b, eps), Error);
  CHECK_THROWS_AS(layernorm(ctx, x, w.to(DType::bf16), b, eps), Error);
  CHECK_THROWS_AS(layernorm(ctx, x, w, b.narrow(0, 0, 3), eps), Error);
  CHECK_THROWS_AS(layernorm(ctx, x, w, b.to(DType::f64), eps), Error);
  CHECK_THROWS_AS(layernorm(ctx, x, w, b, -1e-5), Error);
  CHECK_THROWS_AS(layernorm(ctx, x, w, b, std::numeric_limits<double>::quiet_NaN()), Error);
  CHECK_THROWS_AS(residual_layernorm(ctx, x, x.narrow(0, 0, 2), w, b, eps), Error);
  CHECK_THROWS_AS(residual_layernorm(ctx, x, x.to(DType::f64), w, b, eps), Error);
  CHECK_THROWS_AS(residual_layernorm(ctx, x, Tensor(), w, b, eps), Error);
  CHECK_THROWS_AS(residual_layernorm(ctx, x, x, w, x, eps), Error);
}
