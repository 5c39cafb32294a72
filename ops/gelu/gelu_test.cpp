#include "ops/gelu/gelu.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "core/allocator.h"
#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Var intermediate(Tensor value) {
  auto node = std::make_shared<GradNode>(value.shape(), value.dtype(), value.device(), false);
  return {std::move(value), std::move(node)};
}

struct Outcome {
  Tensor y, dx;
};

Outcome run(const Tensor& x, const Tensor& dy) {
  Tape tape;
  Context ctx{.tape = &tape};
  const Var in = intermediate(x), y = gelu(ctx, in);
  tape.backward(y, dy);
  return {y.value(), in.node()->grad()};
}

// Elements further from the formulas of the header than its bounds and the roundings of storage allow; NaN
// is.
std::int64_t wrong_elements(const Outcome& got, const Tensor& x, const Tensor& dy) {
  const auto in = x.to_vector(), back = dy.to_vector(), y = got.y.to_vector(), dx = got.dx.to_vector();
  REQUIRE(y.size() == in.size());
  REQUIRE(dx.size() == in.size());
  const bool wide = x.dtype() == DType::f64;
  const double of_value = wide ? 1e-15 : 4e-7, of_slope = wide ? 2e-14 : 6e-6;
  const double rounding = wide ? 0x1p-51 : x.dtype() == DType::f32 ? 0x1p-22 : 0x1p-8 + 0x1p-22;
  const double c = std::sqrt(2 / 3.14159265358979323846);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double v = in[i], t = std::tanh(c * (v + 0.044715 * v * v * v)), value = v / 2 * (1 + t);
    const double slope = (1 + t) / 2 + v / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * v * v);
    const auto near = [&](double result, double want, double error) {
      return std::abs(result - want) <= error + rounding * std::abs(want);
    };
    wrong += !near(y[i], value, of_value * std::abs(v)) ||
             !near(dx[i], back[i] * slope, of_slope * std::abs(back[i]));
  }
  return wrong;
}

}  // namespace

TEST_CASE("gelu: against the formulas" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const std::int64_t rows : {0, 1, 5})
      for (const std::int64_t cols : {0, 1, 3, 7, 8, 9, 15, 16, 17, 4095, 4096, 4097}) {
        CAPTURE(rows);
        CAPTURE(cols);
        const Tensor x = random_tensor({rows, cols}, dtype, 1, 2).to(device),
                     dy = random_tensor({rows, cols}, dtype, 2).to(device);
        const Outcome got = run(x, dy);
        CHECK(wrong_elements(got, x, dy) == 0);
        CHECK(got.y.shape() == x.shape());
        CHECK(got.y.dtype() == dtype);
      }
  });
}

TEST_CASE("gelu: bf16 is rounded once" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor x = random_tensor({31, 13}, DType::bf16, 1, 2), dy = random_tensor({31, 13}, DType::bf16, 2);
    const Outcome got = run(x.to(device), dy.to(device)),
                  wide = run(x.to(DType::f32).to(device), dy.to(DType::f32).to(device));
    CHECK_BITS(got.y.to(Device::cpu), wide.y.to(Device::cpu).to(DType::bf16));
    CHECK_BITS(got.dx.to(Device::cpu), wide.dx.to(Device::cpu).to(DType::bf16));
  }
}

TEST_CASE("gelu: far from zero, infinities and NaN" * doctest::test_suite("cuda")) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for_dtypes([=](Device device, DType dtype) {
    const auto on = [&](const std::vector<double>& values) {
      return Tensor::from(values, {std::ssize(values)}).to(dtype).to(device);
    };
    const Outcome r =
        run(on({-inf, -1e30, -50, 0, 50, 1e30, inf, nan, 1}), on({1, 1, 1, 1, 1, 1, 1, 1, nan}));
    const auto y = r.y.to_vector(), dx = r.dx.to_vector(), x = on({1e30}).to_vector();
    for (const std::size_t i : {0, 1, 2}) {
      CHECK(std::abs(y[i]) < 1e-30);
      CHECK(std::abs(dx[i]) < 1e-30);
    }
    CHECK(y[3] == 0);
    CHECK(dx[3] == 0.5);
    CHECK(y[4] == 50);
    CHECK(y[5] == x[0]);
    CHECK(y[6] == inf);
    for (const std::size_t i : {4, 5, 6}) CHECK(dx[i] == 1);
    CHECK(std::isnan(y[7]));
    CHECK(std::isnan(dx[7]));
    CHECK(std::isnan(dx[8]));
  });
}

TEST_CASE("gelu: forward takes the place of a value that was given away, of no other" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor x = random_tensor({7, 33}, DType::f32, 1).to(device), keep = x.clone();
    const Tensor want = run(x, x).y;
    Context ctx;
    const auto given = [&x](const void*& place) {
      Tensor own = x.clone();
      place = own.address();
      return intermediate(std::move(own));
    };
    const void* place = nullptr;
    Var in = given(place);
    Var y = gelu(ctx, std::move(in));
    CHECK(y.value().address() == place);
    CHECK_BITS(y.value(), want);
    CHECK_BITS(gelu(ctx, x).value(), want);
    CHECK_BITS(x, keep);
    Tensor wide = random_tensor({7, 40}, DType::f32, 3).to(device);
    Var window = intermediate(wide.narrow(-1, 0, 33));
    wide = {};
    CHECK(gelu(ctx, std::move(window)).value().contiguous());
    Var leaf = Var::leaf(x.clone());
    const void* weights = leaf.value().address();
    CHECK(gelu(ctx, std::move(leaf)).value().address() != weights);
    // Recorded: backward needs x.
    Tape tape;
    ctx.tape = &tape;
    in = given(place);
    y = gelu(ctx, std::move(in));
    CHECK(y.value().address() != place);
    CHECK_BITS(y.value(), want);
  }
}

TEST_CASE("gelu: borrowed memory, perhaps a file's, is left alone") {
  std::vector<double> values{-2, 3, 0};
  Context ctx;
  gelu(ctx, Tensor::borrow(values.data(), {3}, DType::f64, std::make_shared<const int>(0)));
  CHECK(values == std::vector<double>{-2, 3, 0});
}

TEST_CASE("gelu: backward writes over what nobody else holds, over nothing else" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (int held = 0; held < 4; ++held) {
      CAPTURE(device);
      const bool holds_x = held & 1, holds_dy = held & 2;
      CAPTURE(holds_x);
      CAPTURE(holds_dy);
      const Tensor keep = random_tensor({7, 33}, DType::f32, 1).to(device),
                   keep_dy = random_tensor({7, 33}, DType::f32, 2).to(device);
      const Outcome want = run(keep, keep_dy);
      Tensor x = keep.clone(), dy = keep_dy.clone();
      const void *x_place = x.address(), *dy_place = dy.address();
      const Tensor other_x = holds_x ? x : Tensor(), other_dy = holds_dy ? dy : Tensor();
      Tape tape;
      Context ctx{.tape = &tape};
      Var in = intermediate(std::move(x));
      x = {};
      const auto node = in.node();
      const Var y = gelu(ctx, std::move(in));
      y.node()->add(std::move(dy));
      tape.backward(Var(keep_dy), keep_dy);  // the seed lies in the node
      const void* place = node->grad().address();
      if (!holds_x) CHECK(place == x_place);
      if (holds_x && !holds_dy) CHECK(place == dy_place);
      CHECK_BITS(node->grad(), want.dx);
      CHECK_BITS(y.value(), want.y);
      if (holds_x) CHECK_BITS(other_x, keep);
      if (holds_dy) CHECK_BITS(other_dy, keep_dy);
    }
}

TEST_CASE("gelu: the result is computed again, with the same bits, until backward has run" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    const Tensor x = random_tensor({3, 19}, dtype, 1).to(device);
    Tape tape;
    Context ctx{.tape = &tape};
    const Var y = gelu(ctx, intermediate(x));
    REQUIRE(y.node()->again);
    CHECK_BITS(y.node()->again(), y.value());
    tape.backward(y, x);
    CHECK_FALSE(y.node()->again);
  });
}

TEST_CASE("gelu: against finite differences") {
  CHECK_GRADIENTS([](Context& ctx, const std::vector<Var>& x) { return std::vector<Var>{gelu(ctx, x[0])}; },
                  {random_tensor({4, 9}, DType::f64, 3, 2)});
  CHECK_GRADIENTS(
      [](Context& ctx, const std::vector<Var>& x) {
        const Var y = gelu(ctx, x[0]);
        return std::vector<Var>{gelu(ctx, y), y};
      },
      {random_tensor({2, 3, 5}, DType::f64, 4)});
}

TEST_CASE("gelu: strided rows, gradients into windows, gradients that others hold" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    const std::vector<std::int64_t> widths{5, 11};
    const Tensor wide = random_tensor({9, 16}, dtype, 1).to(device),
                 wide_dy = random_tensor({9, 20}, dtype, 2).to(device), keep = wide_dy.clone();
    Tape tape;
    Context ctx{.tape = &tape};
    const Var x = intermediate(wide);
    const Var y = gelu(ctx, split_last(ctx, x, widths)[1]);
    const Tensor dy = wide_dy.narrow(-1, 2, 11);
    tape.backward(y, dy);
    const Tensor dx = x.node()->grad();
    CHECK(y.value().contiguous());
    CHECK(wrong_elements({y.value(), dx.narrow(-1, 5, 11)}, wide.narrow(-1, 5, 11), dy) == 0);
    for (const double g : dx.narrow(-1, 0, 5).to_vector()) CHECK(g == 0);
    CHECK_BITS(wide_dy, keep);
  });
}

TEST_CASE("gelu: rows of every alignment" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::int64_t start : {0, 1, 4, 8})
        for (const std::int64_t width : {1, 3, 8, 19, 24}) {
          CAPTURE(device);
          CAPTURE(dtype);
          CAPTURE(start);
          CAPTURE(width);
          const Tensor x = random_tensor({5, 32}, dtype, 1, 2).to(device).narrow(-1, start, width),
                       dy = random_tensor({5, 32}, dtype, 2).to(device).narrow(-1, start, width);
          CHECK(wrong_elements(run(x, dy), x, dy) == 0);
        }
}

TEST_CASE("gelu: bits do not depend on the number of threads") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor wide = random_tensor({37, 5003}, dtype, 1);
    const int before = omp_get_max_threads();
    for (const Tensor& x : {wide, wide.narrow(-1, 1, 5001)}) {
      omp_set_num_threads(1);
      const Outcome one = run(x, x);
      omp_set_num_threads(3);
      const Outcome three = run(x, x);
      omp_set_num_threads(before);
      CHECK_BITS(one.y, three.y);
      CHECK_BITS(one.dx, three.dx);
    }
  }
}

TEST_CASE("gelu: leaves in bf16, scalars, nothing recorded without need" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    Tape tape;
    Context ctx{.tape = &tape};
    const Tensor x = random_tensor({3, 4}, DType::bf16, 1).to(device);
    CHECK_FALSE(gelu(ctx, x).needs_grad());
    CHECK(tape.size() == 0);
    const Var leaf = Var::leaf(x);
    tape.backward(gelu(ctx, leaf), x);
    CHECK_CLOSE(leaf.grad(), run(x, x).dx, (Tol{}));
    CHECK(gelu(ctx, Tensor::scalar(1, DType::f32, device)).value().item<float>() ==
          doctest::Approx(0.8411919906).epsilon(1e-6));
  }
}

TEST_CASE("gelu: errors" * doctest::test_suite("cuda")) {
  Context ctx;
  CHECK_THROWS_WITH_AS(gelu(ctx, Tensor()), "gelu: x: got no tensor", Error);
  for (const Device device : test_devices())
    CHECK_THROWS_WITH_AS(gelu(ctx, Tensor::zeros({2, 2}, DType::i32, device)),
                         "gelu: x: want f32, f64 or bf16, got i32", Error);
  if (has_cuda())
    CHECK_THROWS_WITH_AS(gelu(ctx, Tensor::zeros({2, 2}, DType::f64, Device::cuda)),
                         "gelu on cuda: want f32 or bf16, got f64", Error);
}
