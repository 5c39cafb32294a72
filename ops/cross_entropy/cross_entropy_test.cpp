#include "ops/cross_entropy/cross_entropy.h"

#include <doctest/doctest.h>

#include <limits>

#include "ops/cross_entropy/test_support.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("cross_entropy: against finite differences") {
  const Tensor labels = labels_of({2, -100, 0, 4, -100});
  const DiffFn fn = [&](Context& ctx, const std::vector<Var>& v) {
    return std::vector<Var>{cross_entropy(ctx, v[0], labels)};
  };
  CHECK_GRADIENTS(fn, {f64({5, 5}, 1)});
  CHECK_GRADIENTS(fn, {f64({5, 9}, 1).narrow(-1, 2, 5)});
  CHECK_GRADIENTS(fn, {f64({1, 5, 7}, 1)});
}

TEST_CASE("cross_entropy: every dtype against f64") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const std::int64_t rows : {0, 1, 37})
      for (const std::int64_t vocabulary : {1, 2, 31, 1009}) {
        CAPTURE(dtype);
        CAPTURE(rows);
        CAPTURE(vocabulary);
        const Targets labels = some_labels(rows, vocabulary, 5);
        const Tensor z = random_tensor({rows, vocabulary + 3}, dtype, 1, 3.0).narrow(-1, 1, vocabulary);
        const Expected want = reference(z, labels);
        const Var logits(z, std::make_shared<GradNode>(z.shape(), dtype, Device::cpu, false));
        Tape tape;
        Context ctx;
        ctx.tape = &tape;
        const Var loss = cross_entropy(ctx, logits, labels_of(labels));
        const DType acc = accumulate_dtype(dtype);
        CHECK(loss.shape() == Shape{});
        CHECK(loss.value().dtype() == acc);
        tape.backward(loss, Tensor::scalar(0.5, acc, Device::cpu));
        // The f32 exponential is right to 4 units, the sum to about sqrt(V); both shift a row's loss, whose
        // rounding is in units of the loss itself.
        const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
        const double sums = unit * (8 + std::sqrt(static_cast<double>(vocabulary)));
        CHECK(close(value(loss), want.loss, {4 * unit, sums * static_cast<double>(rows + 1)}));
        auto half = want.dlogits.to_vector();
        for (double& g : half) g *= 0.5;
        // exp(z - lse): the error of lse (about 12 in size) enters as its absolute value.
        const double rel = 24 * unit + sums + (dtype == DType::bf16 ? 0x1p-8 : 0);
        CHECK_CLOSE(logits.node()->take(), Tensor::from(half, z.shape()), (Tol{rel, 4 * unit}));
      }
}

TEST_CASE("cross_entropy: huge, far apart and non-finite logits") {
  Context ctx;
  const auto loss = [&](const std::vector<float>& z, std::int64_t label) {
    const auto n = static_cast<std::int64_t>(z.size());
    return value(cross_entropy(ctx, Tensor::from(z, {1, n}), labels_of({label})));
  };
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(loss({3e38f, 3e38f}, 1) == doctest::Approx(std::log(2.0)));
  CHECK(loss({1e4f, -1e4f}, 0) == 0);
  CHECK(loss({1e4f, -1e4f}, 1) == 2e4);
  CHECK(loss({-inf, 1, 1}, 1) == doctest::Approx(std::log(2.0)));
  CHECK(std::isnan(loss({NAN, 1, 1}, 1)));
  CHECK(std::isnan(loss({inf, 1, 1}, 1)));
}

TEST_CASE("cross_entropy: the gradient of large logits is as exact as that of small ones") {
  const Tensor z = random_tensor({16, 7}, DType::f32, 1);
  for (std::int64_t i = 0; i < z.numel(); ++i) z.data<float>()[i] += 1e4f;
  const Targets labels = some_labels(16, 7, 0);
  const Var logits(z, std::make_shared<GradNode>(z.shape(), DType::f32, Device::cpu, false));
  Tape tape;
  Context ctx{.tape = &tape};
  tape.backward(cross_entropy(ctx, logits, labels_of(labels)), Tensor::scalar(1, DType::f32, Device::cpu));
  CHECK_CLOSE(logits.node()->take(), reference(z, labels).dlogits, (Tol{1e-6, 1e-6}));
}

TEST_CASE("cross_entropy: the same bits on the guard device") {
  for_dtypes({Device::guard}, [](Device device, DType dtype) {
    const Tensor z = random_tensor({37, 31}, dtype, 1, 3.0);
    const Labels labels(labels_of(some_labels(37, 31, 5)));
    const auto on = [&](Device at) {
      const Var logits = Var::leaf(z.to(at));
      Tape tape;
      Context ctx{.tape = &tape};
      const Var loss = cross_entropy(ctx, logits, labels.to(at), 0.5);
      tape.backward(loss, Tensor::scalar(0.25, accumulate_dtype(dtype), at));
      return std::pair(loss.value(), logits.grad());
    };
    const auto got = on(device), want = on(Device::cpu);
    CHECK_BITS(got.first, want.first);
    CHECK_BITS(got.second, want.second);
  });
}

TEST_CASE("cross_entropy: errors") {
  Context ctx;
  const Tensor z = Tensor::zeros({3, 5}, DType::f32, Device::cpu);
  CHECK_THROWS_AS(cross_entropy(ctx, z, labels_of({0, 1})), Error);
  CHECK_THROWS_AS(cross_entropy(ctx, z, Tensor::zeros({3}, DType::i32, Device::cpu)), Error);
  CHECK_THROWS_AS(cross_entropy(ctx, Tensor::zeros({3, 5}, DType::i64, Device::cpu), labels_of({0, 4, -100})),
                  Error);
  CHECK_THROWS_AS(cross_entropy(ctx, Tensor::zeros({}, DType::f32, Device::cpu), labels_of({0})), Error);
  CHECK_THROWS_AS(cross_entropy(ctx, z, Tensor::zeros({3, 2}, DType::i64, Device::cpu).narrow(-1, 0, 1)),
                  Error);
}

TEST_CASE("labels: the rows with a target, in order") {
  const Labels labels(labels_of({1, -100, 0, -100, 7}));
  CHECK(labels.count() == 3);
  CHECK(labels.rows.to_vector() == std::vector<double>{0, 2, 4});
  CHECK(labels.values.to_vector() == std::vector<double>{1, -100, 0, -100, 7});
  CHECK(Labels(labels_of({})).count() == 0);
  CHECK(Labels(labels_of({1, -100, 0, 2}).reshape({2, 2})).rows.to_vector() == std::vector<double>{0, 2, 3});
}
