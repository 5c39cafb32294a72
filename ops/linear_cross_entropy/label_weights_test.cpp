#include <doctest/doctest.h>

#include "core/variants.h"
#include "ops/cross_entropy/test_support.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

// Weights of labels, in cross_entropy and linear_cross_entropy.

using namespace nemocube;
using namespace nemocube::testing;

namespace {

KernelChoice choose(const std::string& name) { return KernelChoice{{{"cross_entropy", name}}}; }
const std::vector<std::string>& variants() { return kernel_variants().at("cross_entropy"); }

/// 0.25, 1.75, 3.25, ... in a circle of five.
std::vector<double> weights_of(std::int64_t rows) {
  std::vector<double> weights;
  for (std::int64_t t = 0; t < rows; ++t) weights.push_back(0.25 + 1.5 * static_cast<double>(t % 5));
  return weights;
}

Labels weighted(const Targets& targets, std::int64_t capacity = 0) {
  return {labels_of(targets), capacity, Tensor::from(weights_of(std::ssize(targets)), {std::ssize(targets)})};
}

}  // namespace

TEST_CASE("label weights: gradients are those of finite differences") {
  const Targets some{2, -100, 0, 4, 1, -100, 3}, all{2, 0, 0, 4, 1, 3, 3};
  for (const std::string& name : variants())
    for (const std::int64_t chunk : {1, 3, 100})
      for (const Targets& targets : {some, all})
        for (const double z_loss : {0.0, 0.02}) {
          CAPTURE(name);
          CAPTURE(chunk);
          const KernelChoice choice = choose(name);
          const DiffFn fn = [&](Context& ctx, const std::vector<Var>& v) {
            Context chosen = ctx;
            chosen.kernels = &choice;
            LogitOptions options;
            options.z_loss_weight = z_loss;
            return std::vector<Var>{linear_cross_entropy(chosen, v[0], v[1], weighted(targets), 1.0, chunk,
                                                         {}, nullptr, options)};
          };
          GradCheckOptions options;
          options.unit_cotangents = true;
          CHECK_GRADIENTS(fn, {f64({7, 3}, 1), f64({5, 3}, 2)}, options);
        }
}

TEST_CASE("label weights: each row's loss and gradient times its weight" * doctest::test_suite("cuda")) {
  for_dtypes(head_devices(), [](Device device, DType dtype) {
    constexpr std::int64_t rows = 45, in = 24, vocabulary = 61;
    const Tensor x = random_tensor({rows, in}, dtype, 1), w = random_tensor({vocabulary, in}, dtype, 2, 0.3);
    for (const std::string& name : variants())
      for (const std::int64_t period : {0, 3}) {
        CAPTURE(name);
        CAPTURE(period);
        const KernelChoice choice = choose(name);
        const Targets targets = some_labels(rows, vocabulary, period);
        const auto weights = weights_of(rows);
        struct Outcome {
          double loss;
          Tensor dx;
        };
        const auto run = [&](const Labels& labels) {
          const Var vx = intermediate(x.to(device));
          Tape tape;
          Context ctx{.tape = &tape, .kernels = &choice};
          const Var loss = linear_cross_entropy(ctx, vx, Var::leaf(w.to(device)), labels.to(device), 0.5, 32);
          tape.backward(loss, Tensor::scalar(1, accumulate_dtype(dtype), device));
          return Outcome{value(loss), vx.node()->take()};
        };
        const Outcome got = run(weighted(targets)), plain = run(labels_of(targets));
        auto want = plain.dx.to_vector();
        for (std::size_t i = 0; i < want.size(); ++i) want[i] *= weights[i / in];
        const double tolerance = dtype == DType::f64 ? 1e-14 : dtype == DType::f32 ? 1e-6 : 0x1p-7;
        CHECK(relative_error(got.dx, Tensor::from(want, {rows, in})) < tolerance);
        double loss = 0;
        for (std::int64_t t = 0; t < rows; ++t) {
          Targets alone(static_cast<std::size_t>(rows), ignored_label);
          const auto at = static_cast<std::size_t>(t);
          alone[at] = targets[at];
          if (dtype != DType::f32 || device.is_cuda()) break;  // once is enough
          loss += weights[at] * run(labels_of(alone)).loss;
        }
        if (dtype == DType::f32 && !device.is_cuda()) CHECK(got.loss == doctest::Approx(loss).epsilon(1e-6));
        // Room for more targets changes nothing.
        if (period == 0) continue;
        const Outcome roomy = run(weighted(targets, rows));
        CHECK(roomy.loss == doctest::Approx(got.loss).epsilon(1e-6));
        CHECK(relative_error(roomy.dx, got.dx) < tolerance);
      }
  });
}

TEST_CASE("label weights: wrong ones are refused; labels of the same sizes take over others") {
  const Tensor labels = labels_of({1, -100, 2});
  CHECK(message_of([&] {
          Labels(labels, 0, Tensor::from(std::vector<float>{1, 1, 1}, {3}));
        }) == "labels: weights: want f64, got f32");
  CHECK(message_of([&] {
          Labels(labels, 0, Tensor::from(std::vector<double>{1, 1}, {2}));
        }) == "labels: weights: want shape [3], got [2]");
  const Labels place(labels, 3, Tensor::from(std::vector<double>{1, 2, 3}, {3}));
  CHECK(place.target_weights.to_vector() == std::vector<double>{1, 3, 0});
  place.copy_from(Labels(labels_of({-100, 1, -100}), 3, Tensor::from(std::vector<double>{4, 5, 6}, {3})));
  CHECK(place.weights.to_vector() == std::vector<double>{4, 5, 6});
  CHECK(place.target_weights.to_vector() == std::vector<double>{5, 0, 0});
}
