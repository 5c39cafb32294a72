#include <doctest/doctest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
enum class Slip { none, forgets, overwrites };

// y = x^2 with a gradient that may be wrong on purpose.
DiffFn square(double factor, Slip slip = Slip::none) {
  return [=](Context& ctx, const std::vector<Var>& in) -> std::vector<Var> {
    const Var& x = in[0];
    const Tensor y = Tensor::empty(x.shape(), DType::f64, Device::cpu);
    for (std::int64_t i = 0; i < y.numel(); ++i)
      y.data<double>()[i] = std::pow(x.value().data<double>()[i], 2);
    Var out = make_result(y, ctx.records({&x}));
    if (out.needs_grad() && slip != Slip::forgets)
      ctx.tape->record("square", [=, node = out.node()] {
        const Tensor g = node->take(), dx = Tensor::empty(x.shape(), DType::f64, Device::cpu);
        for (std::int64_t i = 0; i < dx.numel(); ++i)
          dx.data<double>()[i] = factor * x.value().data<double>()[i] * g.data<double>()[i];
        if (slip == Slip::overwrites) x.node()->clear();
        x.node()->add(dx);
      });
    return {out};
  };
}
}  // namespace

TEST_CASE("close: refuses NaN, sign flips and negative pairs") {
  CHECK(close(-20, -20, {}));
  CHECK(close(100, 101, {0.01, 0}));
  CHECK_FALSE(close(-20, -10, {0, 1}));
  CHECK_FALSE(close(10, -10, {0.5, 0}));
  CHECK_FALSE(close(NAN, -10, {0, 1}));
  CHECK_FALSE(close(1, NAN, {0, 1}));
  CHECK_FALSE(close(INFINITY, 1, {0.1, 1}));
  CHECK(close(INFINITY, INFINITY, {}));
}

TEST_CASE("compare: names the worst element") {
  const Tensor want = Tensor::from(std::vector<float>{1, 2, 3}, {3});
  const Tensor got = Tensor::from(std::vector<float>{1, 2.5f, 9}, {3});
  const Verdict v = compare(got, want, {0, 0.1});
  CHECK_FALSE(v.ok);
  CHECK(v.message.find("2 of 3") != std::string::npos);
  CHECK(v.message.find("worst at 2") != std::string::npos);
  CHECK_FALSE(compare(want, want.reshape({1, 3}), {}).ok);
  CHECK_FALSE(compare(Tensor(), want, {}).ok);
  CHECK(compare(want, want, {}).ok);
}

TEST_CASE("compare_bits: tells -0 from 0") {
  const Tensor zero = Tensor::from(std::vector<float>{0}, {1}),
               minus = Tensor::from(std::vector<float>{-0.0f}, {1});
  CHECK(compare(zero, minus, {}).ok);
  CHECK_FALSE(compare_bits(zero, minus).ok);
}

TEST_CASE("relative error: of the whole tensor, NaN stays NaN") {
  const Tensor want = Tensor::from(std::vector<float>{3, 4}, {2}),
               got = Tensor::from(std::vector<float>{3, 4.5f}, {2});
  CHECK(relative_error(got, want) == doctest::Approx(0.1));
  CHECK_FALSE(relative_error(Tensor::from(std::vector<float>{NAN, 4}, {2}), want) <= 1e9);
}

TEST_CASE("gradient check: accepts the right gradient, reports wrong, missing and halved ones") {
  const std::vector<Tensor> x{random_tensor({5}, DType::f64, 3)};
  const auto reports = [&](const DiffFn& fn, const char* what) {
    return check_gradients(fn, x).find(what) != std::string::npos;
  };
  CHECK(check_gradients(square(2), x).empty());
  for (const double factor : {2.001, -2.0, 1.0, 0.0}) CHECK(reports(square(factor), "finite difference"));
  CHECK(reports(square(2, Slip::forgets), "no gradient"));
}

TEST_CASE("gradient check: reports a second backward pass that overwrites the first") {
  const std::string report =
      check_gradients(square(2, Slip::overwrites), {random_tensor({5}, DType::f64, 3)});
  CHECK(report.find("a second backward") != std::string::npos);
  CHECK(report.find("finite difference") == std::string::npos);
}
