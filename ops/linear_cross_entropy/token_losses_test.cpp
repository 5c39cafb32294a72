#include <doctest/doctest.h>

#include "core/allocator.h"
#include "core/variants.h"
#include "ops/cross_entropy/test_support.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/matmul.h"
#include "ops/test_ranks.h"
#include "tests/support/devices.h"

// linear_cross_entropy() with the losses of single tokens.

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const std::vector<std::string>& variants() { return kernel_variants().at("cross_entropy"); }

struct Head {
  Tensor x, weight, bias;
  double soft_cap = 0, z_loss = 0;
  Head on(Device device) const {
    return {x.to(device), weight.to(device), bias ? bias.to(device) : bias, soft_cap, z_loss};
  }
  Head of_tokens(std::int64_t begin, std::int64_t count) const {
    return {x, weight.narrow(0, begin, count), bias ? bias.narrow(0, begin, count).clone() : bias, soft_cap,
            z_loss};
  }
};
Head random_head(std::int64_t rows, std::int64_t vocabulary, DType dtype, bool bias, double soft_cap,
                 double z_loss) {
  const std::int64_t in = 24;
  return {random_tensor({rows, in}, dtype, 1), random_tensor({vocabulary, in}, dtype, 2, 0.3),
          bias ? random_tensor({vocabulary}, dtype, 3) : Tensor(), soft_cap, z_loss};
}

/// -log p of the labelled rows by the formulas in f64.
std::vector<double> expected(const Head& head, const Targets& targets) {
  const Tensor logits = Tensor::empty({head.x.rows(), head.weight.rows()}, DType::f64, Device::cpu);
  matmul({logits, Into::set}, head.x.to(DType::f64), false, head.weight.to(DType::f64), true);
  std::vector<double> losses;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == ignored_label) continue;
    const Targets one{targets[t]};
    losses.push_back(reference(logits.narrow(0, static_cast<std::int64_t>(t), 1), one,
                               {.bias = head.bias, .soft_cap = head.soft_cap})
                         .loss);
  }
  return losses;
}

struct Outcome {
  Tensor loss, tokens;
};
Outcome run(const Head& head, const Labels& labels, const std::string& variant, std::int64_t chunk,
            bool trained, const VocabularyPart& part = {}) {
  const KernelChoice choice{{{"cross_entropy", variant}}};
  Tape tape;
  Context ctx{.tape = trained ? &tape : nullptr, .kernels = &choice};
  const Var x = trained ? intermediate(head.x) : Var(head.x),
            weight = trained ? Var::leaf(head.weight) : Var(head.weight);
  Outcome got;
  got.loss =
      linear_cross_entropy(ctx, x, weight, labels, 1, chunk, part, nullptr,
                           {.bias = Var(head.bias), .soft_cap = head.soft_cap, .z_loss_weight = head.z_loss},
                           &got.tokens)
          .value();
  return got;
}

double tolerance(DType dtype) { return dtype == DType::f64 ? 1e-12 : 4e-6; }

void check_tokens(const Tensor& got, const std::vector<double>& want, DType dtype) {
  REQUIRE(got.dtype() == DType::f64);
  const std::vector<double> values = got.to_vector();
  REQUIRE(values.size() >= want.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    CHECK(values[i] == doctest::Approx(want[i]).epsilon(tolerance(dtype)));
  for (std::size_t i = want.size(); i < values.size(); ++i) CHECK(values[i] == 0);
}

}  // namespace

TEST_CASE("token losses: -log p of each labelled row, without the z loss, for every option" *
          doctest::test_suite("cuda")) {
  for_dtypes(head_devices(), [](Device device, DType dtype) {
    for (const std::string& variant : variants())
      for (const std::int64_t period : {0, 3})
        for (const std::int64_t chunk : {16, 1000})
          for (const bool trained : {false, true})
            for (const auto& [bias, soft_cap, z_loss] :
                 {std::tuple(false, 0.0, 0.0), {true, 3.0, 0.0}, {true, 0.0, 0.25}}) {
              CAPTURE(variant);
              CAPTURE(period);
              CAPTURE(chunk);
              CAPTURE(trained);
              CAPTURE(soft_cap);
              CAPTURE(z_loss);
              const Targets targets = some_labels(37, 61, period);
              const Head head = random_head(37, 61, dtype, bias, soft_cap, z_loss);
              const Labels labels(labels_of(targets));
              const Outcome got = run(head.on(device), labels.to(device), variant, chunk, trained);
              check_tokens(got.tokens, expected(head, targets), dtype);
              if (z_loss != 0) continue;
              double sum = 0;
              for (const double loss : got.tokens.to_vector()) sum += loss;
              CHECK(value(got.loss) == doctest::Approx(sum).epsilon(1e-6));
            }
  });
}

TEST_CASE("token losses: places of a capacity that are left have none" * doctest::test_suite("cuda")) {
  for (const Device device : head_devices())
    for (const std::int64_t capacity : {25, 30, 37}) {
      CAPTURE(device);
      CAPTURE(capacity);
      const Targets targets = some_labels(37, 61, 3);
      const Head head = random_head(37, 61, DType::f32, false, 0, 0.25);
      const Labels labels(labels_of(targets), capacity);
      const Outcome got = run(head.on(device), labels.to(device), "fused", 16, false);
      REQUIRE(got.tokens.numel() == capacity);
      check_tokens(got.tokens, expected(head, targets), DType::f32);
    }
}

TEST_CASE("token losses: no label, no loss" * doctest::test_suite("cuda")) {
  for (const Device device : head_devices()) {
    const Head head = random_head(5, 61, DType::f32, false, 0, 0);
    const Labels labels(labels_of(Targets(5, ignored_label)));
    CHECK(run(head.on(device), labels.to(device), "fused", 16, false).tokens.numel() == 0);
  }
}

TEST_CASE("token losses: all parts of a cut vocabulary have those of the whole" *
          doctest::test_suite("cuda")) {
  const std::vector<std::int64_t> cuts{0, 20, 20, 61};
  for (const Device device : head_devices())
    for (const bool trained : {false, true}) {
      CAPTURE(device);
      const Targets targets = some_labels(37, 61, 3);
      const Head head = random_head(37, 61, DType::f32, true, 3, 0.25);
      const std::vector<double> want = expected(head, targets);
      std::vector<Tensor> of_parts(cuts.size() - 1);
      on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, const ThreadReduction&) {
        of_parts[i] = run(head.of_tokens(cuts[i], cuts[i + 1] - cuts[i]).on(device),
                          Labels(labels_of(targets)).to(device), "fused", 16, trained, part)
                          .tokens;
      });
      for (const Tensor& tokens : of_parts) {
        check_tokens(tokens, want, DType::f32);
        CHECK_BITS(tokens, of_parts[0]);
      }
    }
}
