#include "ops/cross_entropy/logit_options.h"

#include <doctest/doctest.h>

#include <tuple>

#include "core/variants.h"
#include "ops/cross_entropy/test_support.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/matmul.h"
#include "ops/test_ranks.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

// linear_cross_entropy() with a bias, a soft cap and a z loss of the logits.

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const std::vector<std::string>& variants() { return kernel_variants().at("cross_entropy"); }
KernelChoice choose(const std::string& name) { return KernelChoice{{{"cross_entropy", name}}}; }

Tensor product(const Tensor& a, bool ta, const Tensor& b, bool tb) {
  const Tensor c =
      Tensor::empty({ta ? a.cols() : a.rows(), tb ? b.rows() : b.cols()}, DType::f64, Device::cpu);
  matmul({c, Into::set}, a.to(DType::f64), ta, b.to(DType::f64), tb);
  return c;
}

struct Operands {
  Tensor x, w, bias;
  double cap = 0, z_loss = 0;
  Operands to(Device device) const {
    return {x.to(device), w.to(device), bias ? bias.to(device) : bias, cap, z_loss};
  }
};
Operands random_operands(std::int64_t rows, std::int64_t in, std::int64_t vocabulary, DType dtype, bool bias,
                         double cap, double z_loss) {
  return {random_tensor({rows, in}, dtype, 1), random_tensor({vocabulary, in}, dtype, 2, 0.3),
          bias ? random_tensor({vocabulary}, dtype, 3) : Tensor(), cap, z_loss};
}

struct Outcome {
  Tensor loss, dx, dw, db;
};
Outcome run(const Operands& o, const Labels& labels, const std::string& variant, std::int64_t chunk,
            double scale, const VocabularyPart& part = {}, bool frozen = false) {
  const KernelChoice choice = choose(variant);
  const Var x = intermediate(o.x), w = Var::leaf(o.w),
            bias = !o.bias  ? Var()
                   : frozen ? Var(o.bias)
                            : Var::leaf(o.bias);
  Tape tape;
  Context ctx{.tape = &tape, .kernels = &choice};
  const Var loss = linear_cross_entropy(ctx, x, w, labels, scale, chunk, part, nullptr,
                                        {.bias = bias, .soft_cap = o.cap, .z_loss_weight = o.z_loss});
  tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), o.x.device()));
  return {loss.value(), x.node()->take(), w.grad(), o.bias && !frozen ? bias.grad() : Tensor()};
}

/// Calls test(bias or not, cap, weight of the z loss).
template <class Test>
void for_options(Test&& test) {
  for (const auto& [bias, cap, z_loss] :
       {std::tuple(true, 0.0, 0.0), {false, 3.0, 0.0}, {false, 0.0, 0.25}, {true, 3.0, 0.25}}) {
    CAPTURE(bias);
    CAPTURE(cap);
    CAPTURE(z_loss);
    test(bias, cap, z_loss);
  }
}

}  // namespace

TEST_CASE("linear_cross_entropy with logit options: against finite differences") {
  const Tensor some = labels_of({2, -100, 0, 4, 1, -100, 3}), all = labels_of({2, 0, 0, 4, 1, 3, 3});
  GradCheckOptions options;
  options.unit_cotangents = true;
  for (const std::string& name : variants()) {
    CAPTURE(name);
    const KernelChoice choice = choose(name);
    for (const double cap : {0.0, 1.5})
      for (const std::int64_t chunk : {1, 3, 100})
        for (const Tensor& labels : {some, all}) {
          CAPTURE(cap);
          CAPTURE(chunk);
          // x, weight, bias, and, where they are there, A and B of an adapter.
          const DiffFn fn = [&](Context& ctx, const std::vector<Var>& v) {
            Context chosen = ctx;
            chosen.kernels = &choice;
            LoraBranch branch;
            if (v.size() > 3) branch = {v[3], v[4], 1.75, {}};
            return std::vector<Var>{linear_cross_entropy(
                chosen, v[0], v[1], labels, 1, chunk, {}, v.size() > 3 ? &branch : nullptr,
                {.bias = v[2], .soft_cap = cap, .z_loss_weight = cap / 8})};
          };
          const std::vector<Tensor> operands{f64({7, 3}, 1), f64({5, 3}, 2), f64({5}, 3)};
          CHECK_GRADIENTS(fn, operands, options);
          for (int wanted = 1; wanted < 7; ++wanted) {
            GradCheckOptions few = options;
            few.wants = {(wanted & 1) != 0, (wanted & 2) != 0, (wanted & 4) != 0};
            CHECK_GRADIENTS(fn, operands, few);
          }
          CHECK_GRADIENTS(fn, {f64({7, 3}, 1), f64({5, 3}, 2), f64({5}, 3), f64({2, 3}, 4), f64({5, 2}, 5)},
                          options);
          // Weight and bias that are no leaves.
          const DiffFn inner = [&](Context& ctx, const std::vector<Var>& v) {
            Context chosen = ctx;
            chosen.kernels = &choice;
            const Var weight = linear(chosen, v[1], v[2]), bias = linear(chosen, v[3], v[1]);
            return std::vector<Var>{linear_cross_entropy(chosen, v[0], weight, labels, 1, chunk, {}, nullptr,
                                                         {.bias = bias, .soft_cap = cap})};
          };
          CHECK_GRADIENTS(inner, {f64({7, 3}, 1), f64({5, 2}, 2), f64({3, 2}, 3), f64({2}, 4)}, options);
        }
  }
}

TEST_CASE("linear_cross_entropy with logit options: all dtypes and variants, against f64" *
          doctest::test_suite("cuda")) {
  const double scale = 1.0 / 64;
  for_dtypes(head_devices(), [&](Device device, DType dtype) {
    const std::int64_t rows = 45, in = 24;
    for (const std::string& name : variants())
      for (const std::int64_t vocabulary : {61, 304})
        for (const std::int64_t period : {0, 3})
          for (const std::int64_t chunk : {16, 1000})
            for_options([&](bool bias, double cap, double z_loss) {
              if (device.is_cuda() && (vocabulary == 304) != (period == 0 && chunk == 16)) return;
              CAPTURE(name);
              CAPTURE(vocabulary);
              CAPTURE(period);
              CAPTURE(chunk);
              const Targets targets = some_labels(rows, vocabulary, period);
              Operands o = random_operands(rows, in, vocabulary, dtype, bias, cap, z_loss);
              const bool rounded_logits = dtype == DType::bf16 && name == "plain";
              if (rounded_logits) o.z_loss = 0;  // another logit may be the largest
              const Expected want = reference(product(o.x, false, o.w, true), targets,
                                              {.bias = o.bias, .soft_cap = cap, .z_loss_weight = o.z_loss});
              const Tensor g = times(want.dlogits, scale);
              const Labels labels = Labels(labels_of(targets)).to(device);
              const Outcome got = run(o.to(device), labels, name, chunk, scale);
              // As without options; tanh adds 8 roundings of f32, times the cap, to each logit.
              const double of_gradient = dtype == DType::bf16 ? (rounded_logits ? 0x1p-6 : 0x1p-8) : 3e-6;
              CHECK(close(value(got.loss), want.loss, {rounded_logits ? 0x1p-9 : 2e-6, 0}));
              CHECK(relative_error(got.dx, product(g, false, o.w, false)) < of_gradient);
              CHECK(relative_error(got.dw, product(g, true, o.x, false)) < of_gradient);
              if (!bias) return;
              CHECK(relative_error(got.db, column_sums(g)) < of_gradient);
              const Outcome frozen = run(o.to(device), labels, name, chunk, scale, {}, true);
              CHECK_BITS(frozen.loss, got.loss);
              CHECK_BITS(frozen.dx, got.dx);
              CHECK_BITS(frozen.dw, got.dw);
            });
  });
}

TEST_CASE("linear_cross_entropy with logit options: the parts of a vocabulary give those of the whole" *
          doctest::test_suite("cuda")) {
  const std::vector<std::int64_t> cuts{0, 7, 8, 31};
  for_dtypes(head_devices(), [&](Device device, DType dtype) {
    for (const std::string& name : variants())
      for_options([&](bool bias, double cap, double z_loss) {
        CAPTURE(name);
        Operands o = random_operands(13, 8, 31, dtype, bias, cap, z_loss).to(device);
        if (dtype == DType::bf16 && name == "plain") o.z_loss = 0;  // another logit may be the largest
        const Labels labels = Labels(labels_of(some_labels(13, 31, 4))).to(device);
        const Outcome want = run(o, labels, name, 5, 0.25);
        const Tensor dx = Tensor::zeros({13, 8}, DType::f64, Device::cpu);
        std::vector<double> dw, db;
        std::vector<Outcome> parts(cuts.size() - 1);
        on_parts(cuts, [&](std::size_t i, const VocabularyPart& part, const ThreadReduction&) {
          const std::int64_t begin = cuts[i], n = cuts[i + 1] - begin;
          const Operands own{o.x, o.w.narrow(0, begin, n), bias ? o.bias.narrow(-1, begin, n) : Tensor(), cap,
                             o.z_loss};
          parts[i] = run(own, labels, name, 5, 0.25, part);
        });
        for (const Outcome& of_part : parts) {
          CHECK_BITS(of_part.loss, parts[0].loss);
          const auto x = of_part.dx.to_vector(), w = of_part.dw.to_vector();
          for (std::size_t e = 0; e < x.size(); ++e) dx.data<double>()[e] += x[e];
          dw.insert(dw.end(), w.begin(), w.end());
          if (!bias) continue;
          const auto b = of_part.db.to_vector();
          db.insert(db.end(), b.begin(), b.end());
        }
        const double bound = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 4e-6 : 0x1p-7;
        CHECK(relative_error(parts[0].loss, want.loss) < (dtype == DType::f64 ? 1e-14 : 2e-6));
        CHECK(relative_error(dx, want.dx) < bound);
        CHECK(relative_error(Tensor::from(dw, {31, 8}), want.dw) < bound);
        if (bias) CHECK(relative_error(Tensor::from(db, {31}), want.db) < bound);
      });
  });
}

TEST_CASE("linear_cross_entropy with logit options: chunks add to what a leaf holds, no label adds nothing" *
          doctest::test_suite("cuda")) {
  for (const Device device : head_devices())
    for (const std::string& name : variants()) {
      CAPTURE(device);
      CAPTURE(name);
      const KernelChoice choice = choose(name);
      const Operands o = random_operands(9, 4, 6, DType::f32, true, 3, 0).to(device);
      const auto step = [&](const Var& bias, const Targets& targets) {
        Tape tape;
        Context ctx{.tape = &tape, .kernels = &choice};
        const Var loss = linear_cross_entropy(ctx, o.x, o.w, Labels(labels_of(targets)).to(device), 1, 4, {},
                                              nullptr, {.bias = bias, .soft_cap = 3});
        tape.backward(loss, Tensor::scalar(1, DType::f32, device));
      };
      const Var once = Var::leaf(o.bias), twice = Var::leaf(o.bias);
      const Targets targets = some_labels(9, 6, 4), none(9, ignored_label);
      step(once, targets);
      step(twice, none);
      for (const double g : twice.grad().to_vector()) CHECK(g == 0);
      step(twice, targets);
      step(twice, none);
      step(twice, targets);
      CHECK_CLOSE(twice.grad(), times(once.grad(), 2), (Tol{1e-6, 1e-6}));
    }
}

TEST_CASE("linear_cross_entropy with logit options: the same bits on the guard device") {
  for_dtypes({Device::guard}, [](Device device, DType dtype) {
    for (const std::string& name : variants())
      for_options([&](bool bias, double cap, double z_loss) {
        const Operands o = random_operands(41, 8, 29, dtype, bias, cap, z_loss);
        const Labels labels(labels_of(some_labels(41, 29, 3)));
        const Outcome want = run(o, labels, name, 16, 0.25),
                      got = run(o.to(device), labels.to(device), name, 16, 0.25);
        CHECK_BITS(got.loss, want.loss);
        CHECK_BITS(got.dx, want.dx);
        CHECK_BITS(got.dw, want.dw);
        if (bias) CHECK_BITS(got.db, want.db);
      });
  });
}

TEST_CASE("linear_cross_entropy with logit options: errors") {
  const Tensor x = f64({3, 2}, 1), w = f64({5, 2}, 2), labels = labels_of({0, 4, -100});
  for (const std::string& name : variants()) {
    const KernelChoice choice = choose(name);
    Context ctx{.tape = nullptr, .kernels = &choice};
    const std::string op = name == "fused" ? "linear_cross_entropy" : "cross_entropy";
    const auto fault = [&](const Tensor& bias, double cap) {
      return message_of([&] {
        linear_cross_entropy(ctx, x, w, labels, 1, 4, {}, nullptr, {.bias = bias, .soft_cap = cap});
      });
    };
    CHECK(fault(f64({5}, 3), 2) == "no error");
    CHECK(fault(f64({2}, 3), 0) == op + ": bias: want shape [5], got [2]");
    CHECK(fault(f64({5}, 3).to(DType::f32), 0) == op + ": bias: want f64, got f32");
    CHECK(fault(Tensor(), -2) == op + ": soft_cap: want a finite number >= 0, got -2");
  }
}
