#include "ops/vocabulary_part.h"

#include <doctest/doctest.h>

#include <limits>

#include "core/variants.h"
#include "ops/cross_entropy/test_support.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/test_ranks.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

// Cross-entropy over a cut vocabulary, against the same operations without a cut.

namespace {

using Cuts = std::vector<std::int64_t>;
constexpr double inf = std::numeric_limits<double>::infinity();

struct Outcome {
  Tensor loss, dx, dweight;
};

// dx is an intermediate, the gradient of the weight a leaf or not.
Outcome head_loss(const Tensor& x, const Tensor& weight, const Targets& labels, const KernelChoice& kernels,
                  bool leaf, const VocabularyPart& part = {}) {
  const Device device = x.device();
  const Var vx = intermediate(x), vw = leaf ? Var::leaf(weight) : intermediate(weight);
  Tape tape;
  Context ctx{.tape = &tape, .kernels = &kernels};
  const Var loss = linear_cross_entropy(ctx, vx, vw, Labels(labels_of(labels)).to(device), 0.25, 5, part);
  tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), device));
  return {loss.value(), vx.node()->take(), leaf ? vw.grad() : vw.node()->take()};
}

// Loss and gradient of logits over parts.
Expected over_parts(const Tensor& logits, const Targets& labels, const Cuts& cuts, Device device) {
  Expected got{0, Tensor::zeros(logits.shape(), DType::f64, Device::cpu)};
  on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, const ThreadReduction&) {
    const Tensor z = logits.narrow(-1, cuts[i], cuts[i + 1] - cuts[i]).to(device);
    const Var own = intermediate(z);
    Tape tape;
    Context ctx{.tape = &tape};
    const Var loss = cross_entropy(ctx, own, Labels(labels_of(labels)).to(device), 1, part);
    tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), device));
    got.loss = value(loss);
    got.dlogits.narrow(-1, cuts[i], z.cols()).copy_from(own.node()->take().to(Device::cpu).to(DType::f64));
  });
  return got;
}

}  // namespace

TEST_CASE("vocabulary part: the parts give loss, dx and dW of the whole" * doctest::test_suite("cuda")) {
  const std::int64_t vocabulary = 31, in = 8;
  const auto check = [&](Device device, DType dtype, std::int64_t rows, const Targets& labels,
                         const Cuts& cuts, const std::string& name) {
    CAPTURE(rows);
    CAPTURE(cuts.size());
    CAPTURE(name);
    const KernelChoice kernels{{{"cross_entropy", name}}};
    const Tensor x = random_tensor({rows, in}, dtype, 1).to(device);
    const Tensor weight = random_tensor({vocabulary, in}, dtype, 2, 0.5).to(device);
    const bool leaf = cuts.size() % 2 == 0;
    const Outcome want = head_loss(x, weight, labels, kernels, leaf);
    std::vector<Outcome> parts(cuts.size() - 1);
    on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, const ThreadReduction&) {
      const Tensor own = weight.narrow(0, cuts[i], cuts[i + 1] - cuts[i]);
      parts[i] = head_loss(x, own, labels, kernels, leaf, part);
    });
    const double bound = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 2e-6 : 0x1p-7;
    const Tensor dx = Tensor::zeros(x.shape(), DType::f64, Device::cpu);
    std::vector<double> dw;
    for (const Outcome& of_part : parts) {
      CHECK_BITS(of_part.loss, parts[0].loss);
      const auto partial = of_part.dx.to_vector(), rows_of_part = of_part.dweight.to_vector();
      for (std::size_t e = 0; e < partial.size(); ++e) dx.data<double>()[e] += partial[e];
      dw.insert(dw.end(), rows_of_part.begin(), rows_of_part.end());
    }
    CHECK(relative_error(parts[0].loss, want.loss) < (dtype == DType::f64 ? 1e-14 : 1e-6));
    CHECK(relative_error(dx, want.dx) < bound);
    CHECK(relative_error(Tensor::from(dw, weight.shape()), want.dweight) < bound);
  };
  for_dtypes(head_devices(), [&](Device device, DType dtype) {
    const std::vector<std::int64_t> all_rows =
        device == Device::cpu ? std::vector<std::int64_t>{0, 1, 23} : std::vector<std::int64_t>{0, 7};
    for (const std::string& name : kernel_variants().at("cross_entropy"))
      for (const std::int64_t rows : all_rows)
        for (const Targets& labels :
             {some_labels(rows, vocabulary, 0), some_labels(rows, vocabulary, 3),
              some_labels(rows, vocabulary, 1), Targets(static_cast<std::size_t>(rows), 2)})
          for (const Cuts& cuts : {Cuts{0, 31}, Cuts{0, 10, 31}, Cuts{0, 7, 8, 31}, Cuts{0, 13, 31, 31}})
            check(device, dtype, rows, labels, cuts, name);
  });
}

TEST_CASE("vocabulary part: against finite differences, x of each part on its own") {
  const Targets labels{2, -100, 0, 4, 1};
  const Cuts cuts{0, 3, 5};
  const auto check = [&](const std::string& name, double z_loss) {
    CAPTURE(name);
    CAPTURE(z_loss);
    const KernelChoice kernels{{{"cross_entropy", name}}};
    const DiffFn fn = [&](Context& ctx, const std::vector<Var>& v) {
      std::vector<Var> losses(2);
      on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, const ThreadReduction&) {
        Context chosen{.tape = ctx.tape, .kernels = &kernels};
        losses[i] = linear_cross_entropy(chosen, v[2 * i], v[2 * i + 1], labels_of(labels), 1, 2, part,
                                         nullptr, {.bias = {}, .soft_cap = 0, .z_loss_weight = z_loss});
      });
      // Both ranks have the whole loss. It counts once; each rank's backward pass starts from 1.
      losses[1] = Var(Tensor::scalar(0, DType::f64, Device::cpu), losses[1].node());
      return losses;
    };
    GradCheckOptions options;
    options.unit_cotangents = true;
    CHECK_GRADIENTS(fn, {f64({5, 2}, 1), f64({3, 2}, 2), f64({5, 2}, 3), f64({2, 2}, 4)}, options);
  };
  for (const std::string& name : kernel_variants().at("cross_entropy"))
    for (const double z_loss : {0.0, 0.25}) check(name, z_loss);
}

TEST_CASE("vocabulary part: huge, far apart and non-finite logits" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("cross_entropy")) {
    CAPTURE(device);
    const std::vector<DType> dtypes =
        device.is_cuda() ? std::vector{DType::f32} : std::vector{DType::f32, DType::f64};
    for (const DType dtype : dtypes) {
      CAPTURE(dtype);
      const Targets labels = some_labels(17, 29, 4);
      const Tensor far = random_tensor({17, 29}, dtype, 1, 1e4),
                   near = random_tensor({17, 29}, dtype, 2, 2.0);
      for (std::int64_t r = 0; r < near.rows(); ++r)
        visit_accumulate("test", dtype, [&]<class T>(TypeTag<T>) {
          for (std::int64_t v = 0; v < near.cols(); ++v) near.row<T>(r)[v] += T(r % 2 ? 1e4 : -1e4);
        });
      for (const Tensor& z : {far, near}) {
        const Expected want = reference(z, labels);
        const Expected got = over_parts(z, labels, {0, 11, 12, 29}, device);
        const double bound = dtype == DType::f64 ? 1e-13 : 1e-6;
        // Rounding in units of the logits, 1e4, for each row.
        CHECK(close(got.loss, want.loss, {bound, 17 * 1e4 * bound}));
        CHECK_CLOSE(got.dlogits, want.dlogits, (Tol{4 * bound, bound}));
      }
    }
    const auto loss = [&](const std::vector<double>& z, std::int64_t label) {
      const Tensor logits = Tensor::from(z, {1, 4});
      return over_parts(device.is_cuda() ? logits.to(DType::f32) : logits, {label}, {0, 2, 4}, device).loss;
    };
    const double most = device.is_cuda() ? 1e38 : 1e300;
    CHECK(loss({most, most, 1, 1}, 0) == doctest::Approx(std::log(2.0)));
    CHECK(loss({-inf, -inf, 1, 1}, 2) == doctest::Approx(std::log(2.0)));
    CHECK(loss({-inf, -inf, 1, 1}, 1) == inf);
    CHECK(std::isnan(loss({NAN, -inf, 1, 1}, 2)));
    CHECK(std::isnan(loss({1, 1, NAN, -inf}, 0)));
    CHECK(std::isnan(loss({inf, 1, 1, 1}, 2)));
    CHECK(std::isnan(loss({-inf, -inf, -inf, -inf}, 2)));
  }
}

TEST_CASE("vocabulary part: one maximum and one sum for each block of rows, none in backward") {
  const auto messages = [](const char* variant, const Targets& labels) {
    const KernelChoice kernels{{{"cross_entropy", variant}}};
    const Tensor x = random_tensor({static_cast<std::int64_t>(labels.size()), 3}, DType::f32, 1);
    const Tensor weight = random_tensor({8, 3}, DType::f32, 2);
    std::vector<Shape> sent;
    on_parts({0, 4, 8}, [&](std::size_t i, const VocabularyPart& part, const ThreadReduction& reduction) {
      head_loss(x, weight.narrow(0, 4 * static_cast<std::int64_t>(i), 4), labels, kernels, true, part);
      sent = reduction.messages;
    });
    return sent;
  };
  CHECK(messages("fused", some_labels(7, 8, 0)) == std::vector<Shape>{{5}, {5, 2}, {2}, {2, 2}});
  CHECK(messages("plain", some_labels(7, 8, 0)) == std::vector<Shape>{{7}, {7, 2}});
  CHECK(messages("fused", {-100, 3, -100}) == std::vector<Shape>{{1}, {1, 2}});
  CHECK(messages("fused", {-100, -100}).empty());
  CHECK(messages("plain", {}).empty());
}
