#include "ops/cross_entropy/logit_options.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <limits>

#include "ops/cross_entropy/test_support.h"
#include "ops/test_ranks.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

// cross_entropy() with a bias, a soft cap and a z loss, and shape_logits().

using namespace nemocube;
using namespace nemocube::testing;

namespace {

struct Given {
  bool bias;
  double cap, z_loss = 0;
};
constexpr Given shapes[] = {{true, 0}, {false, 2.5}, {true, 2.5}, {false, 0, 0.25}, {true, 2.5, 0.25}};

template <class Test>
void for_shapes(Test&& test) {
  for (const Given& s : shapes) {
    CAPTURE(s.bias);
    CAPTURE(s.cap);
    CAPTURE(s.z_loss);
    test(s);
  }
}

struct Outcome {
  Tensor loss, dz, db;
};

Outcome run(const Tensor& z, const Labels& labels, const Tensor& bias, const Given& s, double dloss = 1,
            const VocabularyPart& part = {}) {
  const Var logits = intermediate(z), b = bias ? Var::leaf(bias) : Var();
  Tape tape;
  Context ctx{.tape = &tape};
  const Var loss = cross_entropy(ctx, logits, labels, 0.5, part,
                                 {.bias = b, .soft_cap = s.cap, .z_loss_weight = s.z_loss});
  tape.backward(loss, Tensor::scalar(dloss, loss.value().dtype(), z.device()));
  return {loss.value(), logits.node()->take(), bias ? b.grad() : Tensor()};
}

// Errors of the arithmetic of f32 (f64), relative to each gradient.
double bound_of(DType dtype, std::int64_t vocabulary, double cap) {
  const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  // Exponentials and sums as without options. tanh is right to 8 units, times the cap in z'; the slope
  // 1 - t^2 cancels, so that its error counts as an absolute one.
  return unit * (32 + 8 * std::sqrt(static_cast<double>(vocabulary)) + 16 * cap) +
         (dtype == DType::bf16 ? 2 * 0x1p-8 : 0);
}

}  // namespace

TEST_CASE("logit options: cross_entropy against finite differences") {
  const Tensor labels = labels_of({2, -100, 0, 4, -100});
  for_shapes([&](const Given& s) {
    const DiffFn fn = [&](Context& ctx, const std::vector<Var>& v) {
      return std::vector<Var>{
          cross_entropy(ctx, v[0], labels, 1, {},
                        {.bias = s.bias ? v[1] : Var(), .soft_cap = s.cap, .z_loss_weight = s.z_loss})};
    };
    std::vector<Tensor> operands{f64({5, 5}, 1)};
    if (s.bias) operands.push_back(f64({5}, 2));
    CHECK_GRADIENTS(fn, operands);
    operands[0] = f64({5, 9}, 1).narrow(-1, 2, 5);
    CHECK_GRADIENTS(fn, operands);
    if (!s.bias) return;
    CHECK_GRADIENTS(fn, operands, {.wants = {true, false}});
    CHECK_GRADIENTS(fn, operands, {.wants = {false, true}});
  });
}

TEST_CASE("logit options: cross_entropy in every dtype against f64, and the loss alone" *
          doctest::test_suite("cuda")) {
  // On CUDA: several block sizes, several tiles, and more of them than shared memory holds.
  const std::vector<std::pair<std::int64_t, std::int64_t>> sizes{{0, 7},    {1, 1},    {7, 31},
                                                                 {2, 1009}, {2, 2056}, {1, 70001}};
  for_dtypes(test_devices("cross_entropy"), [&](Device device, DType dtype) {
    for (const auto& [rows, vocabulary] : sizes)
      for (const std::int64_t start : {0, 1}) {  // of 16-byte accesses or not, on CUDA
        // The widest is for CUDA, where sums of so many terms are formed in parts.
        if (vocabulary > 4096 && (!device.is_cuda() || start == 0)) continue;
        for_shapes([&, rows = rows, vocabulary = vocabulary](const Given& s) {
          if (vocabulary > 4096 && !(s.bias && s.cap > 0)) return;
          CAPTURE(rows);
          CAPTURE(vocabulary);
          CAPTURE(start);
          const Targets targets = some_labels(rows, vocabulary, 5);
          const Labels labels = Labels(labels_of(targets)).to(device);
          const Tensor z = random_tensor({rows, vocabulary / 8 * 8 + 16}, dtype, 1, 3.0)
                               .to(device)
                               .narrow(-1, start, vocabulary);
          const Tensor bias = s.bias ? random_tensor({vocabulary / 8 * 8 + 16}, dtype, 2)
                                           .to(device)
                                           .narrow(-1, start, vocabulary)
                                     : Tensor();
          const Expected want = reference(z.to(Device::cpu), targets,
                                          {.bias = bias, .soft_cap = s.cap, .z_loss_weight = s.z_loss});
          const Outcome got = run(z, labels, bias, s, 0.25);
          const double rel = bound_of(dtype, vocabulary, s.cap),
                       unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
          const double of_rows = static_cast<double>(rows + 1);
          CHECK(close(value(got.loss), want.loss,
                      {4 * unit, bound_of(accumulate_dtype(dtype), vocabulary, s.cap) * of_rows}));
          const Tensor dz = times(want.dlogits, 0.125);
          CHECK_CLOSE(got.dz, dz, (Tol{rel, 16 * unit}));
          // Terms of at most 1/8, each as exact as above.
          if (bias) CHECK_CLOSE(got.db, column_sums(dz), (Tol{rel, of_rows * (rel + 16 * unit) / 8}));
          Context silent;
          const Var alone = cross_entropy(silent, z, labels, 0.5, {},
                                          {.bias = bias, .soft_cap = s.cap, .z_loss_weight = s.z_loss});
          CHECK_BITS(alone.value(), got.loss);
          const Outcome again = run(z, labels, bias, s, 0.25);
          CHECK_BITS(again.dz, got.dz);
          if (bias) CHECK_BITS(again.db, got.db);
        });
      }
  });
}

TEST_CASE("logit options: a row has the bits that it has alone" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("cross_entropy"), [&](Device device, DType dtype) {
    for_shapes([&](const Given& s) {
      const Targets targets = some_labels(9, 61, 4);
      const Tensor z = random_tensor({9, 61}, dtype, 1, 3.0).to(device),
                   bias = s.bias ? random_tensor({61}, dtype, 2).to(device) : Tensor();
      const Tensor all = run(z, Labels(labels_of(targets)).to(device), bias, s).dz;
      for (const std::int64_t r : {0, 3, 8}) {
        const Labels own = Labels(labels_of({targets[static_cast<std::size_t>(r)]})).to(device);
        CHECK_BITS(run(z.narrow(0, r, 1), own, bias, s).dz, all.narrow(0, r, 1));
      }
    });
  });
}

TEST_CASE("logit options: the parts of a vocabulary give loss and gradients of the whole" *
          doctest::test_suite("cuda")) {
  const std::vector<std::int64_t> cuts{0, 7, 8, 31, 31};
  for_dtypes(test_devices("cross_entropy"), [&](Device device, DType dtype) {
    for_shapes([&](const Given& s) {
      const Targets targets = some_labels(6, 31, 5);
      const Labels labels = Labels(labels_of(targets)).to(device);
      const Tensor z = random_tensor({6, 31}, dtype, 1, 3.0).to(device),
                   bias = s.bias ? random_tensor({31}, dtype, 2).to(device) : Tensor();
      const Outcome want = run(z, labels, bias, s);
      on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, const ThreadReduction&) {
        const std::int64_t n = cuts[i + 1] - cuts[i];
        const auto own = [&](const Tensor& t) { return t ? t.narrow(-1, cuts[i], n) : t; };
        const Outcome got = run(own(z), labels, own(bias), s, 1, part);
        const double rel = bound_of(dtype, 31, s.cap), unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
        CHECK_CLOSE(got.loss, want.loss, (Tol{bound_of(accumulate_dtype(dtype), 31, s.cap), 0}));
        CHECK_CLOSE(got.dz, own(want.dz), (Tol{2 * rel, 16 * unit}));
        if (bias) CHECK_CLOSE(got.db, own(want.db), (Tol{2 * rel, 7 * (2 * rel + 16 * unit)}));
      });
    });
  });
}

TEST_CASE("logit options: huge and non-finite logits" * doctest::test_suite("cuda")) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const Device device : test_devices("cross_entropy")) {
    CAPTURE(device);
    const auto outcome = [&](const std::vector<float>& z, const std::vector<float>& bias, double cap,
                             double z_loss = 0) {
      const auto n = static_cast<std::int64_t>(z.size());
      const Outcome o =
          run(Tensor::from(z, {1, n}).to(device), Labels(labels_of({0})).to(device),
              bias.empty() ? Tensor() : Tensor::from(bias, {n}).to(device), {!bias.empty(), cap, z_loss});
      return std::pair(value(o.loss), o.dz.to_vector());
    };
    CHECK(outcome({3e38f, 3e38f}, {}, 30).first == doctest::Approx(std::log(2.0)));
    CHECK(outcome({3e38f, 3e38f}, {}, 30).second == std::vector<double>{0, 0});
    CHECK(outcome({inf, inf}, {}, 30).first == doctest::Approx(std::log(2.0)));
    CHECK(outcome({-inf, -1e30f}, {}, 5).first == doctest::Approx(std::log(2.0)));
    CHECK(outcome({1e4f, -1e4f}, {-1e4f, 1e4f}, 0).first == doctest::Approx(std::log(2.0)));
    CHECK(outcome({1, 1, 1}, {0, -inf, 0}, 0).first == doctest::Approx(std::log(2.0)));
    CHECK(outcome({1, 1, 1}, {0, -inf, 0}, 0).second[1] == 0);
    CHECK(std::isnan(outcome({1, NAN}, {}, 30).first));
    CHECK(std::isnan(outcome({1, 1}, {0, NAN}, 30).first));
    CHECK(outcome({2, -inf, 2}, {}, 0, 0.25).first == doctest::Approx(std::log(2.0) + 1));
    CHECK(outcome({2, -inf, 2}, {}, 0, 0.25).second == std::vector<double>{0.25, 0, 0.25});
    CHECK(outcome({-1e4f, -2e4f}, {}, 0, 0.25).first == doctest::Approx(0.25e8));
    CHECK(outcome({-1e4f, -2e4f}, {}, 0, 0.25).second == std::vector<double>{-2500, 0});
    CHECK(outcome({3e38f, 1}, {}, 2, 0.25).first ==
          doctest::Approx(1 + std::log1p(std::exp(2 * std::tanh(0.5) - 2))));
    CHECK(std::isnan(outcome({1, NAN}, {}, 0, 0.25).first));
    CHECK(std::isnan(outcome({-inf, -inf}, {}, 0, 0.25).first));
  }
}

TEST_CASE("logit options: bits do not depend on the number of threads or the guard device") {
  for_dtypes({Device::cpu, Device::guard}, [](Device device, DType dtype) {
    for_shapes([&](const Given& s) {
      const Tensor z = random_tensor({37, 5003}, dtype, 1, 3.0),
                   bias = s.bias ? random_tensor({5003}, dtype, 2) : Tensor();
      const Labels labels(labels_of(some_labels(37, 5003, 5)));
      const int before = omp_get_max_threads();
      omp_set_num_threads(1);
      const Outcome want = run(z, labels, bias, s);
      omp_set_num_threads(3);
      const Outcome got = run(z.to(device), labels.to(device), bias ? bias.to(device) : bias, s);
      omp_set_num_threads(before);
      CHECK_BITS(got.loss, want.loss);
      CHECK_BITS(got.dz, want.dz);
      if (bias) CHECK_BITS(got.db, want.db);
    });
  });
}

TEST_CASE("z loss: the first of equal logits has the gradient, in one part and in several" *
          doctest::test_suite("cuda")) {
  const auto check = [](Device device, DType dtype, std::int64_t vocabulary, const Given& s) {
    CAPTURE(vocabulary);
    CAPTURE(s.bias);
    const std::int64_t middle = vocabulary / 2, last = vocabulary - 1;
    // z' before the cap, exact in every dtype: 2 in some places of a row, -1 elsewhere.
    const Tensor z = Tensor::empty({5, vocabulary}, DType::f64, Device::cpu);
    z.fill(-1);
    for (const auto& [r, v] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {0, 2}, {0, 4}, {0, 8}, {1, middle}, {1, last}, {2, 7}, {2, 8}, {4, 1}})
      z.row<double>(r)[v] = 2;
    const Targets targets{1, middle, 8, 0, ignored_label};
    const Tensor bias = s.bias ? Tensor::zeros({vocabulary}, DType::f64, Device::cpu) : Tensor();
    for (std::int64_t v = 1; s.bias && v < vocabulary; v += 2) {
      bias.data<double>()[v] = 3;
      for (std::int64_t r = 0; r < 5; ++r) z.row<double>(r)[v] -= 3;
    }
    const Expected want = reference(z, targets, {.bias = bias, .soft_cap = s.cap, .z_loss_weight = s.z_loss});
    const Tensor logits = z.to(dtype).to(device), biases = bias ? bias.to(dtype).to(device) : bias;
    const Labels labels = Labels(labels_of(targets)).to(device);
    const double of_loss = bound_of(accumulate_dtype(dtype), vocabulary, s.cap),
                 of_gradient = bound_of(dtype, vocabulary, s.cap);
    const auto compare = [&](const Outcome& got, const Tensor& dlogits) {
      CHECK(close(value(got.loss), want.loss, {of_loss, 0}));
      CHECK_CLOSE(got.dz, times(dlogits, 0.5), (Tol{of_gradient, of_gradient}));
    };
    compare(run(logits, labels, biases, s), want.dlogits);
    const std::vector<std::int64_t> cuts{0, 3, 8, 8, vocabulary};
    on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, const ThreadReduction& sent) {
      const auto own = [&](const Tensor& t) { return t ? t.narrow(-1, cuts[i], cuts[i + 1] - cuts[i]) : t; };
      compare(run(own(logits), labels, own(biases), s, 1, part), own(want.dlogits));
      Context silent;
      cross_entropy(silent, own(logits), labels, 1, part,
                    {.bias = own(biases), .soft_cap = s.cap, .z_loss_weight = s.z_loss});
      CHECK(sent.messages == std::vector<Shape>{{5}, {5, 2}, {5}, {5}, {5, 2}});
    });
  };
  for_dtypes(test_devices("cross_entropy"), [&](Device device, DType dtype) {
    for (const std::int64_t vocabulary : {9, 3000})
      for (const Given& s : {Given{false, 0, 0.25}, {true, 4, 0.25}}) check(device, dtype, vocabulary, s);
  });
}

TEST_CASE("shape_logits: against the formula, in windows, of a bias of any dtype" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("cross_entropy"), [](Device device, DType dtype) {
    for (const std::int64_t cols : {1, 8, 31, 1009})
      for (const std::int64_t start : {0, 3})
        for (const DType of_bias : test_dtypes(device))
          for_shapes([&](const Given& s) {
            CAPTURE(cols);
            CAPTURE(start);
            CAPTURE(of_bias);
            const Tensor wide = random_tensor({3, cols / 8 * 8 + 16}, dtype, 1, 3.0).to(device),
                         keep = wide.to(Device::cpu).clone(), z = wide.narrow(-1, start, cols),
                         bias = s.bias ? random_tensor({cols}, of_bias, 2).to(device) : Tensor();
            auto want = z.to_vector();
            const auto b = s.bias ? bias.to_vector() : std::vector<double>(static_cast<std::size_t>(cols));
            for (std::size_t i = 0; i < want.size(); ++i) {
              want[i] += b[i % b.size()];
              if (s.cap > 0) want[i] = s.cap * std::tanh(want[i] / s.cap);
            }
            shape_logits(z, {.bias = bias, .soft_cap = s.cap, .z_loss_weight = s.z_loss});
            // The sum and the quotient are rounded, tanh is right to 8 units, the product is rounded. A bias
            // of f64 beside f32 counts as f32. Where the sum cancels, its error is one of its terms.
            const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
            CHECK_CLOSE(z, Tensor::from(want, {3, cols}),
                        (Tol{12 * unit + (dtype == DType::bf16 ? 0x1p-8 : 0), 16 * unit}));
            CHECK_BITS(wide.to(Device::cpu).narrow(-1, start + cols, 16 - start - cols % 8),
                       keep.narrow(-1, start + cols, 16 - start - cols % 8));
          });
    const Tensor z = random_tensor({3, 5}, dtype, 1).to(device), keep = z.clone();
    shape_logits(z, {});
    CHECK_BITS(z, keep);
    shape_logits(Tensor::zeros({0, 5}, dtype, device), {.bias = {}, .soft_cap = 3});
  });
}

TEST_CASE("logit options: errors") {
  Context ctx;
  const Tensor z = Tensor::zeros({1, 5}, DType::f32, Device::cpu), labels = labels_of({0});
  const auto fault = [&](const Tensor& bias, double cap) {
    return message_of([&] { cross_entropy(ctx, z, labels, 1, {}, {.bias = bias, .soft_cap = cap}); });
  };
  CHECK(fault(Tensor(), 3) == "no error");
  CHECK(fault(Tensor::zeros({4}, DType::f32, Device::cpu), 0) ==
        "cross_entropy: bias: want shape [5], got [4]");
  CHECK(fault(Tensor::zeros({5}, DType::bf16, Device::cpu), 0) == "cross_entropy: bias: want f32, got bf16");
  CHECK(fault(Tensor(), -1) == "cross_entropy: soft_cap: want a finite number >= 0, got -1");
  CHECK(fault(Tensor(), HUGE_VAL) == "cross_entropy: soft_cap: want a finite number >= 0, got inf");
  CHECK(message_of([&] {
          cross_entropy(ctx, z, labels, 1, {}, {.bias = {}, .soft_cap = 0, .z_loss_weight = -1});
        }) == "cross_entropy: z_loss_weight: want a finite number >= 0, got -1");
  CHECK(message_of([&] {
          shape_logits(z, {.bias = Tensor::zeros({4}, DType::f32, Device::cpu), .soft_cap = 0});
        }) == "shape_logits: bias: want shape [5], got [4]");
  CHECK(message_of([&] {
          shape_logits(Tensor::zeros({1, 5}, DType::i64, Device::cpu), {});
        }) == "shape_logits: logits: want f32, f64 or bf16, got i64");
}
