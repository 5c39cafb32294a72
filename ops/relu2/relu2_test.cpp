#include "ops/relu2/relu2.h"

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

struct Outcome {
  Tensor y, dx;
};

Outcome run(const Tensor& x, const Tensor& dy) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var in(x, std::make_shared<GradNode>(x.shape(), x.dtype(), x.device(), false));
  const Var y = relu2(ctx, in);
  tape.backward(y, dy);
  return {y.value(), in.node()->grad()};
}

Outcome reference(const Tensor& x, const Tensor& dy) {
  auto y = x.to_vector(), dx = dy.to_vector();
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double p = y[i] > 0 ? y[i] : 0;
    y[i] = p * p;
    dx[i] *= 2 * p;
  }
  return {Tensor::from(y, x.shape()), Tensor::from(dx, x.shape())};
}

}  // namespace

TEST_CASE("relu2: against the formula" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const std::int64_t rows : {0, 1, 3, 17})
      for (const std::int64_t cols : {0, 1, 15, 16, 17, 33, 4095, 4096, 4097}) {
        CAPTURE(rows);
        CAPTURE(cols);
        const Tensor x = random_tensor({rows, cols}, dtype, 1).to(device),
                     dy = random_tensor({rows, cols}, dtype, 2).to(device);
        const Outcome got = run(x, dy), want = reference(x, dy);
        // One rounding of the product in f32 and one of storage.
        const double unit = dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : 0x1p-8 + 0x1p-22;
        CHECK_CLOSE(got.y, want.y, (Tol{unit, 0}));
        CHECK_CLOSE(got.dx, want.dx, (Tol{2 * unit, 0}));
        CHECK(got.y.dtype() == dtype);
      }
  });
}

TEST_CASE("relu2: bf16 is rounded once" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor x = random_tensor({11, 13}, DType::bf16, 1).to(device);
    const auto y = run(x, x).y.to_vector(), in = x.to_vector();
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto p = static_cast<float>(in[i] > 0 ? in[i] : 0);
      CHECK(y[i] == static_cast<double>(bf16(p * p)));
    }
  }
}

TEST_CASE("relu2: backward finds max(x, 0) again, to the bit" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    // Mantissas of all sorts, magnitudes about 2^-40 to 2^40.
    const Tensor x = random_tensor({40000}, dtype, 5), ones = Tensor::empty({40000}, dtype, device);
    auto values = x.to_vector();
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = std::ldexp(values[i], static_cast<int>(i % 81) - 40);
    const Tensor scaled = Tensor::from(values, x.shape()).to(dtype).to(device);
    ones.fill(1);
    const auto in = scaled.to_vector(), dx = run(scaled, ones).dx.to_vector();
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < in.size(); ++i) wrong += dx[i] != 2 * std::max(in[i], 0.0);
    CHECK(wrong == 0);
  });
}

TEST_CASE("relu2: takes the place of a value that was given away, of no other" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor x = random_tensor({7, 33}, DType::f32, 1).to(device),
                 dy = random_tensor({7, 33}, DType::f32, 2).to(device);
    const Outcome want = run(x, dy);
    const auto node = [&x] { return std::make_shared<GradNode>(x.shape(), x.dtype(), x.device(), false); };
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    Tensor own = x.clone();
    const void* place = own.address();
    const auto in = node();
    Var given(std::move(own), in);
    own = {};
    const Var y = relu2(ctx, std::move(given));
    CHECK(y.value().address() == place);
    tape.backward(y, dy);
    CHECK_BITS(y.value(), want.y);
    CHECK_BITS(in->grad(), want.dx);

    const Tensor shared = x.clone();
    CHECK(relu2(ctx, Var(shared, node())).value().address() != shared.address());
    CHECK_BITS(shared, x);
    Tensor wide = random_tensor({7, 40}, DType::f32, 3).to(device);
    Var window(wide.narrow(-1, 0, 33), node());
    wide = {};
    CHECK(relu2(ctx, std::move(window)).value().contiguous());
    Var leaf = Var::leaf(x.clone());
    const void* weights = leaf.value().address();
    CHECK(relu2(ctx, std::move(leaf)).value().address() != weights);
  }
}

TEST_CASE("relu2: borrowed memory, perhaps a file's, is left alone") {
  std::vector<double> values{-2, 3, 5};
  Context ctx;
  const Tensor y =
      relu2(ctx, Tensor::borrow(values.data(), {3}, DType::f64, std::make_shared<const int>(0))).value();
  CHECK(y.to_vector() == std::vector<double>{0, 9, 25});
  CHECK(values == std::vector<double>{-2, 3, 5});
}

TEST_CASE("relu2: against finite differences") {
  CHECK_GRADIENTS([](Context& ctx, const std::vector<Var>& x) { return std::vector<Var>{relu2(ctx, x[0])}; },
                  {random_tensor({4, 9}, DType::f64, 3)});
  CHECK_GRADIENTS(
      [](Context& ctx, const std::vector<Var>& x) {
        const Var y = relu2(ctx, x[0]);
        return std::vector<Var>{relu2(ctx, y), y};
      },
      {random_tensor({2, 3, 5}, DType::f64, 4)});
}

TEST_CASE("relu2: zeros, infinities and NaN" * doctest::test_suite("cuda")) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for_dtypes([=](Device device, DType dtype) {
    const Tensor x = Tensor::from<double>({-0.0, 0.0, -inf, inf, nan, -3, 3}, {7}).to(dtype).to(device);
    const Tensor dy = Tensor::from<double>({1, 1, 1, 1, 1, inf, -2}, {7}).to(dtype).to(device);
    const Outcome r = run(x, dy);
    const auto y = r.y.to_vector(), dx = r.dx.to_vector();
    CHECK(y[0] == 0);
    CHECK(y[1] == 0);
    CHECK(y[2] == 0);
    CHECK(y[3] == inf);
    CHECK(std::isnan(y[4]));
    CHECK(y[5] == 0);
    CHECK(y[6] == 9);
    CHECK(dx[0] == 0);
    CHECK(dx[2] == 0);
    CHECK(std::isnan(dx[4]));
    CHECK(dx[6] == -12);
  });
}

TEST_CASE("relu2: strided rows, gradients into windows, gradients that others hold" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const std::vector<std::int64_t> widths{5, 11};
    const Tensor wide = random_tensor({9, 16}, DType::f32, 1).to(device),
                 dy = random_tensor({9, 11}, DType::f32, 2).to(device);
    const Outcome want = reference(wide.narrow(-1, 5, 11), dy);
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const Var x = Var::leaf(wide);
    const Var y = relu2(ctx, split_last(ctx, x, widths)[1]);
    const Tensor wide_dy = Tensor::zeros({9, 20}, DType::f32, device), keep = dy.clone();
    wide_dy.narrow(-1, 2, 11).copy_from(dy);
    tape.backward(y, wide_dy.narrow(-1, 2, 11));
    CHECK(y.value().contiguous());
    CHECK_CLOSE(y.value(), want.y, (Tol{0x1p-24, 0}));
    CHECK_CLOSE(x.grad().narrow(-1, 5, 11), want.dx, (Tol{0x1p-23, 0}));
    for (const double g : x.grad().narrow(-1, 0, 5).to_vector()) CHECK(g == 0);
    CHECK_BITS(wide_dy.narrow(-1, 2, 11), keep);
  }
}

TEST_CASE("relu2: rows of every alignment on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t start : {0, 1, 4, 8})
      for (const std::int64_t width : {1, 3, 8, 19, 24}) {
        CAPTURE(dtype);
        CAPTURE(start);
        CAPTURE(width);
        const Tensor x = random_tensor({5, 32}, dtype, 1), dy = random_tensor({5, 32}, dtype, 2);
        const auto window = [&](const Tensor& t) { return t.narrow(-1, start, width); };
        const Outcome got = run(window(x.to(Device::cuda)), window(dy.to(Device::cuda))),
                      want = run(window(x), window(dy));
        CHECK_BITS(got.y, want.y);
        CHECK_BITS(got.dx, want.dx);
      }
}

TEST_CASE("relu2: bits do not depend on the number of threads") {
  const Tensor x = random_tensor({37, 5003}, DType::bf16, 1);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Outcome one = run(x, x);
  omp_set_num_threads(3);
  const Outcome three = run(x, x);
  omp_set_num_threads(before);
  CHECK_BITS(one.y, three.y);
  CHECK_BITS(one.dx, three.dx);
}

TEST_CASE("relu2: leaves in bf16, scalars, nothing recorded without need" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const Tensor x = random_tensor({3, 4}, DType::bf16, 1).to(device);
    CHECK_FALSE(relu2(ctx, x).needs_grad());
    CHECK(tape.size() == 0);
    const Var leaf = Var::leaf(x);
    tape.backward(relu2(ctx, leaf), x);
    CHECK_CLOSE(leaf.grad(), run(x, x).dx, (Tol{}));
    CHECK(relu2(ctx, Tensor::scalar(3, DType::f32, device)).value().item<float>() == 9);
  }
}

TEST_CASE("relu2: errors" * doctest::test_suite("cuda")) {
  Context ctx;
  CHECK_THROWS_AS(relu2(ctx, Tensor()), Error);
  for (const Device device : test_devices())
    CHECK_THROWS_AS(relu2(ctx, Tensor::zeros({2, 2}, DType::i32, device)), Error);
  if (has_cuda())
    CHECK_THROWS_WITH_AS(relu2(ctx, Tensor::zeros({2, 2}, DType::f64, Device::cuda)),
                         "relu2 on cuda: want f32 or bf16, got f64", Error);
}
