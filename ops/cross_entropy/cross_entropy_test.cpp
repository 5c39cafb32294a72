#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/allocator.h"
#include "core/kernels.h"
#include "ops/linear/linear.h"
#include "ops/matmul/matmul.h"
#include "tests/support/compare.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Labels = std::vector<std::int64_t>;

Tensor labels_of(const Labels& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

Tensor f64(const Shape& shape, std::uint64_t seed) { return random_tensor(shape, DType::f64, seed); }

// Every `period`-th row is ignored.
Labels some_labels(std::int64_t rows, std::int64_t vocabulary, std::int64_t period) {
  Labels labels;
  for (std::int64_t t = 0; t < rows; ++t)
    labels.push_back(period > 0 && t % period == period - 1 ? ignored_label : (t * 7 + 3) % vocabulary);
  return labels;
}

struct Expected {
  double loss = 0;
  Tensor dlogits;
};

// The formulas of the contract in f64.
Expected reference(const Tensor& logits, const Labels& labels) {
  Expected e{0, Tensor::zeros(logits.shape(), DType::f64)};
  const Tensor z = logits.to(DType::f64);
  for (std::int64_t t = 0; t < z.rows(); ++t) {
    const std::int64_t label = labels[static_cast<std::size_t>(t)];
    if (label == ignored_label) continue;
    const double* row = z.row<double>(t);
    double most = row[0], sum = 0;
    for (std::int64_t v = 0; v < z.cols(); ++v) most = std::max(most, row[v]);
    for (std::int64_t v = 0; v < z.cols(); ++v) sum += std::exp(row[v] - most);
    e.loss += most + std::log(sum) - row[label];
    for (std::int64_t v = 0; v < z.cols(); ++v)
      e.dlogits.row<double>(t)[v] = std::exp(row[v] - most) / sum - (v == label ? 1 : 0);
  }
  return e;
}

Tensor product(const Tensor& a, bool ta, const Tensor& b, bool tb) {
  const Tensor c = Tensor::empty({ta ? a.cols() : a.rows(), tb ? b.rows() : b.cols()}, DType::f64);
  matmul({c, Into::set}, a.to(DType::f64), ta, b.to(DType::f64), tb);
  return c;
}

KernelChoice choose(const std::string& name) { return KernelChoice{{{"cross_entropy", name}}}; }
const std::vector<std::string>& variants() { return kernel_variants().at("cross_entropy"); }

double value(const Var& loss) { return loss.value().to_vector().front(); }

}  // namespace

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
        const Labels labels = some_labels(rows, vocabulary, 5);
        const Tensor z = random_tensor({rows, vocabulary + 3}, dtype, 1, 3.0).narrow(-1, 1, vocabulary);
        const Expected want = reference(z, labels);
        const Var logits(z, std::make_shared<GradNode>(z.shape(), dtype, false));
        Tape tape;
        Context ctx;
        ctx.tape = &tape;
        const Var loss = cross_entropy(ctx, logits, labels_of(labels));
        const DType acc = accumulate_dtype(dtype);
        CHECK(loss.shape() == Shape{});
        CHECK(loss.value().dtype() == acc);
        tape.backward(loss, Tensor::scalar(0.5, acc));
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

TEST_CASE("cross_entropy: no labelled row gives loss 0 and gradient 0") {
  const Tensor labels = labels_of({-100, -100, -100});
  for (const std::string& name : variants()) {
    CAPTURE(name);
    const KernelChoice choice = choose(name);
    const Var x = Var::leaf(random_tensor({3, 4}, DType::f32, 1));
    const Var weight = Var::leaf(random_tensor({6, 4}, DType::f32, 2));
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    ctx.kernels = &choice;
    const Var loss = linear_cross_entropy(ctx, x, weight, labels, 1.0, 2);
    CHECK(value(loss) == 0);
    tape.backward(loss, Tensor::scalar(1, DType::f32));
    CHECK_CLOSE(x.grad(), Tensor::zeros({3, 4}, DType::f32), Tol{});
    CHECK_CLOSE(weight.grad(), Tensor::zeros({6, 4}, DType::f32), Tol{});
  }
}

TEST_CASE("linear_cross_entropy: against finite differences") {
  const Tensor labels = labels_of({2, -100, 0, 4, 1, -100, 3}), all = labels_of({2, 0, 0, 4, 1, 3, 3});
  for (const std::string& name : variants()) {
    CAPTURE(name);
    const KernelChoice choice = choose(name);
    for (const std::int64_t chunk : {1, 3, 7, 100})
      for (const Tensor& l : {labels, all}) {
        const DiffFn fn = [&](Context& ctx, const std::vector<Var>& v) {
          Context chosen = ctx;
          chosen.kernels = &choice;
          return std::vector<Var>{linear_cross_entropy(chosen, v[0], v[1], l, 1.0, chunk)};
        };
        GradCheckOptions options;
        options.unit_cotangents = true;
        CHECK_GRADIENTS(fn, {f64({7, 3}, 1), f64({5, 3}, 2)}, options);
        CHECK_GRADIENTS(fn, {f64({7, 6}, 1).narrow(-1, 2, 3), f64({5, 3}, 2)}, options);
        CHECK_GRADIENTS(fn, {f64({1, 7, 3}, 1), f64({5, 3}, 2)}, options);
        for (const bool first : {false, true}) {
          options.wants = {first, !first};
          CHECK_GRADIENTS(fn, {f64({7, 3}, 1), f64({5, 3}, 2)}, options);
        }
        options.wants.clear();
        const DiffFn inner = [&](Context& ctx, const std::vector<Var>& v) {
          Context chosen = ctx;
          chosen.kernels = &choice;
          const Var x = linear(chosen, v[0], v[2]), weight = linear(chosen, v[1], v[2]);
          return std::vector<Var>{linear_cross_entropy(chosen, x, weight, l, 1.0, chunk)};
        };
        CHECK_GRADIENTS(inner, {f64({7, 2}, 1), f64({5, 2}, 2), f64({3, 2}, 3)}, options);
      }
  }
}

TEST_CASE("linear_cross_entropy: f32 and bf16, all variants, against f64") {
  const std::int64_t rows = 131, in = 32, vocabulary = 301;
  const double scale = 1.0 / 64;
  for (const std::string& name : variants())
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
      for (const std::int64_t period : {0, 2, 3})
        for (const std::int64_t chunk : {32, 50, 1000}) {
          CAPTURE(name);
          CAPTURE(dtype);
          CAPTURE(period);
          CAPTURE(chunk);
          const KernelChoice choice = choose(name);
          const Labels labels = some_labels(rows, vocabulary, period);
          const Tensor x = random_tensor({rows, in}, dtype, 1);
          const Tensor w = random_tensor({vocabulary, in}, dtype, 2, 0.3);
          const Expected want = reference(product(x, false, w, true), labels);
          auto scaled = want.dlogits.to_vector();
          for (double& g : scaled) g *= scale;
          const Tensor g = Tensor::from(scaled, {rows, vocabulary});
          const Var vx(x, std::make_shared<GradNode>(x.shape(), dtype, false)), vw = Var::leaf(w);
          Tape tape;
          Context ctx;
          ctx.tape = &tape;
          ctx.kernels = &choice;
          const Var loss = linear_cross_entropy(ctx, vx, vw, labels_of(labels), scale, chunk);
          tape.backward(loss, Tensor::scalar(1, accumulate_dtype(dtype)));
          // bf16: gradients of logits are rounded once (2^-9 of each, random signs); "plain" also rounds the
          // logits, of size up to 8, which shifts each probability by up to 2^-6 of itself.
          const bool rounded_logits = dtype == DType::bf16 && name == "plain";
          const double of_gradient = dtype == DType::bf16 ? (rounded_logits ? 0x1p-6 : 0x1p-8) : 1e-6;
          const double of_loss = rounded_logits ? 0x1p-9 : 1e-6;
          CHECK(close(value(loss), want.loss, {of_loss, 0}));
          CHECK(relative_error(vx.node()->take(), product(g, false, w, false)) < of_gradient);
          CHECK(relative_error(vw.grad(), product(g, true, x, false)) < of_gradient);
        }
}

TEST_CASE("linear_cross_entropy: fused adds to what a leaf holds") {
  const Tensor x = random_tensor({9, 4}, DType::f32, 1), labels = labels_of(some_labels(9, 6, 4));
  const Var once = Var::leaf(random_tensor({6, 4}, DType::f32, 2)), twice = Var::leaf(once.value());
  const auto step = [&](const Var& weight) {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    tape.backward(linear_cross_entropy(ctx, x, weight, labels, 1.0, 4), Tensor::scalar(1, DType::f32));
  };
  step(once);
  step(twice);
  step(twice);
  auto doubled = once.grad().to_vector();
  for (double& g : doubled) g *= 2;
  CHECK_CLOSE(twice.grad(), Tensor::from(doubled, {6, 4}), (Tol{1e-6, 1e-6}));
}

TEST_CASE("linear_cross_entropy: without a tape only the loss, the same one") {
  const Tensor x = random_tensor({40, 8}, DType::bf16, 1), w = random_tensor({50, 8}, DType::bf16, 2);
  const Tensor labels = labels_of(some_labels(40, 50, 3));
  const Var weight = Var::leaf(w);
  Context silent;
  const Var loss = linear_cross_entropy(silent, x, weight, labels, 1.0, 16);
  CHECK_FALSE(loss.needs_grad());
  CHECK_FALSE(weight.node()->filled());
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  CHECK_BITS(linear_cross_entropy(ctx, x, weight, labels, 1.0, 16).value(), loss.value());
}

TEST_CASE("linear_cross_entropy: work and memory follow the labelled rows and the chunk") {
  const std::int64_t rows = 2048, in = 16, vocabulary = 4096, chunk = 64;
  const Tensor x = random_tensor({rows, in}, DType::f32, 1),
               w = random_tensor({vocabulary, in}, DType::f32, 2);
  Labels labels(static_cast<std::size_t>(rows), ignored_label);
  for (const std::size_t t : {5, 77, 1999}) labels[t] = 3;
  const Var vx = Var::leaf(x), vw = Var::leaf(w);
  vw.node()->into();
  const auto peak = [&](const Labels& chosen) {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    reset_cpu_peak();
    const std::int64_t before = cpu_memory().current_bytes;
    linear_cross_entropy(ctx, vx, vw, labels_of(chosen), 1.0, chunk);
    return cpu_memory().peak_bytes - before;
  };
  reset_matmul_flops();
  peak(labels);
  CHECK(matmul_flops() == 3 * 2.0 * 32 * in * vocabulary);  // three rows, padded to 32
  const Labels all(static_cast<std::size_t>(rows), 1);
  peak(all);  // products are prepared
  // Logits of one chunk, the gradient of x, scratch of the products; all logits would be 32 MiB.
  CHECK(peak(all) < 3 * chunk * vocabulary * 4 + 4 * rows * in * 4 + (2 << 20));
}

TEST_CASE("cross_entropy: errors") {
  Context ctx;
  const Tensor z = Tensor::zeros({3, 5}, DType::f32), x = Tensor::zeros({3, 2}, DType::f32),
               w = Tensor::zeros({5, 2}, DType::f32);
  const Tensor good = labels_of({0, 4, -100});
  for (const Labels& bad : {Labels{0, 5, 1}, Labels{0, 1, -1}, Labels{-101, 1, 1}, Labels{0, 1}}) {
    CHECK_THROWS_AS(cross_entropy(ctx, z, labels_of(bad)), Error);
    for (const std::string& name : variants()) {
      const KernelChoice choice = choose(name);
      ctx.kernels = &choice;
      CHECK_THROWS_AS(linear_cross_entropy(ctx, x, w, labels_of(bad), 1.0, 4), Error);
      ctx.kernels = nullptr;
    }
  }
  CHECK_THROWS_WITH(cross_entropy(ctx, z, labels_of({0, 7, 1})),
                    "cross_entropy: label 7 at position 1: want -100 or a token in [0, 5)");
  CHECK_THROWS_AS(cross_entropy(ctx, z, Tensor::zeros({3}, DType::i32)), Error);
  CHECK_THROWS_AS(cross_entropy(ctx, Tensor::zeros({3, 5}, DType::i64), good), Error);
  CHECK_THROWS_AS(cross_entropy(ctx, Tensor::zeros({}, DType::f32), labels_of({0})), Error);
  CHECK_THROWS_AS(cross_entropy(ctx, z, Tensor::zeros({3, 2}, DType::i64).narrow(-1, 0, 1)), Error);
  CHECK_THROWS_AS(count_labels(z), Error);
  CHECK_THROWS_AS(count_labels(Tensor::zeros({3, 2}, DType::i64).narrow(-1, 0, 1)), Error);
  for (const std::string& name : variants()) {
    const KernelChoice choice = choose(name);
    ctx.kernels = &choice;
    CHECK_THROWS_AS(linear_cross_entropy(ctx, x, w, good, 1.0, 0), Error);
    CHECK_THROWS_AS(linear_cross_entropy(ctx, x, Tensor::zeros({5, 3}, DType::f32), good, 1.0, 4), Error);
    CHECK_THROWS_AS(linear_cross_entropy(ctx, x, w.to(DType::bf16), good, 1.0, 4), Error);
    CHECK_THROWS_AS(linear_cross_entropy(ctx, Tensor::zeros({}, DType::f32), w, good, 1.0, 4), Error);
    ctx.kernels = nullptr;
  }
  Tape tape;
  ctx.tape = &tape;
  const Var loss = linear_cross_entropy(ctx, x, Var::leaf(w), good, 1.0, 4);
  CHECK_THROWS_AS(tape.backward(loss, Tensor::scalar(0.5, DType::f32)), std::logic_error);
}

TEST_CASE("count_labels") {
  CHECK(count_labels(labels_of({1, -100, 0, -100, 7})) == 3);
  CHECK(count_labels(labels_of({})) == 0);
}
