#include "ops/l2_normalize/l2_normalize.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "core/variants.h"
#include "ops/cross_entropy/test_support.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

struct Outcome {
  Tensor y, dx;
};

Outcome run(const Tensor& x, const Tensor& dy, double eps = 1e-12, bool leaf = false) {
  const Var in = leaf ? Var::leaf(x) : intermediate(x);
  Tape tape;
  Context ctx{.tape = &tape};
  const Var y = l2_normalize(ctx, in, eps);
  tape.backward(y, dy);
  return {y.value(), leaf ? in.grad() : in.node()->take()};
}

Outcome reference(const Tensor& x, const Tensor& dy, double eps = 1e-12) {
  auto y = x.to_vector(), dx = dy.to_vector();
  const auto cols = static_cast<std::size_t>(x.cols());
  for (std::size_t r = 0; r < static_cast<std::size_t>(x.rows()) && cols > 0; ++r) {
    double squares = 0, dot = 0;
    for (std::size_t i = r * cols; i < (r + 1) * cols; ++i) squares += y[i] * y[i];
    const double norm = std::sqrt(squares), divisor = std::max(norm, eps);
    for (std::size_t i = r * cols; i < (r + 1) * cols; ++i) dot += (y[i] /= divisor) * dx[i];
    for (std::size_t i = r * cols; i < (r + 1) * cols; ++i)
      dx[i] = (dx[i] - (norm >= eps ? y[i] * dot : 0)) / divisor;
  }
  return {Tensor::from(y, x.shape()), Tensor::from(dx, x.shape())};
}

void check(const Outcome& got, const Tensor& x, const Tensor& dy) {
  const Outcome want = reference(x, dy);
  const DType dtype = x.dtype();
  const double cols = static_cast<double>(x.cols()), unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  // Sums of squares are right to 8 sqrt(n) roundings relative to themselves, y . dy to as many of terms of
  // size 1 / sqrt(n): of the size of 1.
  const double sums = unit * (4 + 8 * std::sqrt(cols)), store = dtype == DType::bf16 ? 0x1p-8 : unit;
  CHECK_CLOSE(got.y, want.y, (Tol{sums + store, 0}));
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    double squares = 0;
    for (const double v : x.narrow(0, r, 1).to_vector()) squares += v * v;
    least = std::min(least, std::sqrt(squares));
  }
  const double stored = got.dx.dtype() == DType::bf16 ? 0x1p-8 : unit;
  CHECK_CLOSE(got.dx, want.dx, (Tol{sums + stored, 4 * sums / least}));
}

}  // namespace

TEST_CASE("l2_normalize: against the formulas" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const std::int64_t rows : {0, 1, 3, 17})
      for (const std::int64_t cols : {1, 7, 8, 31, 33, 1025, 4100}) {
        if (rows == 17 && cols > 1000) continue;
        CAPTURE(rows);
        CAPTURE(cols);
        const Tensor x = random_tensor({rows, cols}, dtype, 1, 3).to(device),
                     dy = random_tensor({rows, cols}, dtype, 2).to(device);
        const Outcome got = run(x, dy);
        CHECK(got.y.dtype() == dtype);
        check(got, x, dy);
        // The gradient of a leaf is not rounded to bf16.
        const Outcome leaf = run(x, dy, 1e-12, true);
        CHECK(leaf.dx.dtype() == accumulate_dtype(dtype));
        check(leaf, x, dy);
        CHECK_BITS(leaf.dx.to(dtype), got.dx);
      }
    const Tensor none = Tensor::zeros({3, 0}, dtype, device);
    CHECK(run(none, none).y.shape() == Shape{3, 0});
  });
}

TEST_CASE("l2_normalize: rows of every start, and a row has the bits that it has alone" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const std::int64_t start : {0, 1, 4, 8})
      for (const std::int64_t width : {3, 8, 24}) {
        CAPTURE(start);
        CAPTURE(width);
        const Tensor x = random_tensor({5, 40}, dtype, 1).to(device).narrow(-1, start, width),
                     dy = random_tensor({5, 40}, dtype, 2).to(device).narrow(-1, start, width);
        const Outcome got = run(x, dy);
        CHECK(got.y.contiguous());
        check(got, x, dy);
        const Outcome alone = run(x.narrow(0, 3, 1).clone(), dy.narrow(0, 3, 1).clone());
        CHECK_BITS(alone.y, got.y.narrow(0, 3, 1));
        CHECK_BITS(alone.dx, got.dx.narrow(0, 3, 1));
      }
  });
}

TEST_CASE("l2_normalize: short rows, zeros and NaN" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    const Tensor
        x = Tensor::from<double>({0, 0, 3e-13, 4e-13, 3e-12, 4e-12, NAN, 1}, {4, 2}).to(dtype).to(device),
        dy = Tensor::from<double>({1, -2, 1, -2, 1, -2, 1, -2}, {4, 2}).to(dtype).to(device);
    const Outcome got = run(x, dy), want = reference(x.narrow(0, 0, 3), dy.narrow(0, 0, 3));
    const double unit = dtype == DType::f64 ? 1e-15 : dtype == DType::f32 ? 1e-6 : 0x1p-7;
    CHECK_CLOSE(got.y.narrow(0, 0, 3), want.y, (Tol{unit, 0}));
    CHECK_CLOSE(got.dx.narrow(0, 0, 3), want.dx, (Tol{4 * unit, 0}));
    CHECK(got.y.to_vector()[0] == 0);
    for (const Tensor& t : {got.y, got.dx})
      for (const std::size_t i : {6, 7}) CHECK(std::isnan(t.to_vector()[i]));
  });
}

TEST_CASE("l2_normalize: against finite differences") {
  const DiffFn fn = [](Context& ctx, const std::vector<Var>& x) {
    return std::vector<Var>{l2_normalize(ctx, x[0])};
  };
  CHECK_GRADIENTS(fn, {f64({4, 9}, 3)});
  CHECK_GRADIENTS(fn, {f64({2, 3, 5}, 4)});
  CHECK_GRADIENTS(fn, {f64({4, 9}, 3).narrow(-1, 2, 5)});
  // Divided by eps, and partly so.
  for (const double eps : {100.0, 2.5})
    CHECK_GRADIENTS(
        [eps](Context& ctx, const std::vector<Var>& x) {
          const Var y = l2_normalize(ctx, x[0], eps);
          return std::vector<Var>{y, l2_normalize(ctx, y, 1e-3)};
        },
        {f64({6, 7}, 5)});
}

TEST_CASE("l2_normalize: adds to what a leaf holds; the same bits on any number of threads" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    const Tensor x = random_tensor({37, 503}, dtype, 1).to(device),
                 dy = random_tensor({37, 503}, dtype, 2).to(device);
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    const Outcome one = run(x, dy, 1e-12, true);
    omp_set_num_threads(3);
    const Outcome three = run(x, dy, 1e-12, true);
    omp_set_num_threads(before);
    CHECK_BITS(one.y, three.y);
    CHECK_BITS(one.dx, three.dx);
    const Var leaf = Var::leaf(x);
    for (int i = 0; i < 2; ++i) {
      Tape tape;
      Context ctx{.tape = &tape};
      tape.backward(l2_normalize(ctx, leaf), dy);
    }
    CHECK_CLOSE(leaf.grad(), times(one.dx, 2), (Tol{0, 0}));
  });
}

TEST_CASE("l2_normalize: as the weight of a head" * doctest::test_suite("cuda")) {
  // The gradient of a normalised weight is formed with the loss, and reaches the raw weight in backward.
  const Targets targets = some_labels(13, 31, 4);
  for (const std::string& name : kernel_variants().at("cross_entropy")) {
    CAPTURE(name);
    const KernelChoice choice{{{"cross_entropy", name}}};
    for (const std::int64_t chunk : {4, 100}) {
      const DiffFn fn = [&](Context& ctx, const std::vector<Var>& v) {
        Context chosen{.tape = ctx.tape, .kernels = &choice};
        return std::vector<Var>{
            linear_cross_entropy(chosen, v[0], l2_normalize(chosen, v[1]), labels_of(targets), 1, chunk)};
      };
      GradCheckOptions options;
      options.unit_cotangents = true;
      CHECK_GRADIENTS(fn, {f64({13, 5}, 1), f64({31, 5}, 2)}, options);
      options.wants = {false, true};
      CHECK_GRADIENTS(fn, {f64({13, 5}, 1), f64({31, 5}, 2)}, options);
    }
    for_dtypes(head_devices(), [&](Device device, DType dtype) {
      const Tensor x = random_tensor({13, 8}, dtype, 1, 3), w = random_tensor({31, 8}, dtype, 2);
      const auto head = [&](const Tensor& rows, const Tensor& weight, Device on) {
        const Var in = Var::leaf(rows.to(on)), raw = Var::leaf(weight.to(on));
        for (int step = 0; step < 2; ++step) {
          Tape tape;
          Context ctx{.tape = &tape, .kernels = &choice};
          const Var loss = linear_cross_entropy(ctx, in, l2_normalize(ctx, raw),
                                                Labels(labels_of(targets)).to(on), 0.25, 4);
          tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), on));
        }
        return std::pair(in.grad(), raw.grad());
      };
      const auto got = head(x, w, device), want = head(x.to(DType::f64), w.to(DType::f64), Device::cpu);
      // bf16: the normalised weight, its gradient and, in "plain", the logits are rounded as well.
      const double bound = dtype == DType::f64 ? 1e-14 : dtype == DType::f32 ? 3e-6 : 0x1p-6;
      CHECK(relative_error(got.first, want.first) < bound);
      CHECK(relative_error(got.second, want.second) < bound);
    });
  }
}

TEST_CASE("l2_normalize: nothing recorded without need; errors" * doctest::test_suite("cuda")) {
  Tape tape;
  Context ctx{.tape = &tape};
  for (const Device device : test_devices()) {
    const Tensor x = random_tensor({3, 4}, DType::f32, 1).to(device);
    CHECK_FALSE(l2_normalize(ctx, x).needs_grad());
    CHECK(tape.size() == 0);
    CHECK_THROWS_WITH_AS(l2_normalize(ctx, Tensor()), "l2_normalize: x: want at least one dimension", Error);
    CHECK_THROWS_WITH_AS(l2_normalize(ctx, Tensor::zeros({2, 2}, DType::i32, device)),
                         "l2_normalize: x: want f32, f64 or bf16, got i32", Error);
    CHECK_THROWS_WITH_AS(l2_normalize(ctx, x, 0), "l2_normalize: eps: want a value > 0, got 0", Error);
  }
  if (has_cuda())
    CHECK_THROWS_WITH_AS(l2_normalize(ctx, Tensor::zeros({2, 2}, DType::f64, Device::cuda)),
                         "l2_normalize on cuda: want f32 or bf16, got f64", Error);
}
