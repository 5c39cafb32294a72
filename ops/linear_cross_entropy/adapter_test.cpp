#include <doctest/doctest.h>

#include "core/variants.h"
#include "ops/cross_entropy/test_support.h"
#include "ops/linear/linear.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/lora/test_reference.h"
#include "ops/matmul/matmul.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

// linear_cross_entropy() with a low-rank adapter.

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

constexpr double branch_scale = 1.75;
const RandomStream stream(11, "lm_head");

LoraDropout dropout_of(DropoutPosition position, std::int64_t rows, Device device) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t t = 0; t < rows; ++t) numbers.push_back((std::int64_t{5} << 32) + 7 * t);
  return {.probability = 0.375,
          .position = position,
          .stream = stream,
          .row_numbers = Tensor::from(numbers, {rows}).to(device)};
}

/// No dropout, that of x and that of the branch.
std::vector<LoraDropout> dropouts(std::int64_t rows, Device device = Device::cpu) {
  return {LoraDropout(), dropout_of(DropoutPosition::pre, rows, device),
          dropout_of(DropoutPosition::post, rows, device)};
}

/// The factors of a [rows, cols] matrix by the definition; undefined where there is no dropout.
Tensor factors(const LoraDropout& dropout, DropoutPosition position, std::int64_t rows, std::int64_t cols) {
  if (dropout.probability == 0 || dropout.position != position) return {};
  const RandomTable draws(stream);
  const Tensor numbers = dropout.row_numbers.to(Device::cpu),
               t = Tensor::empty({rows, cols}, DType::f64, Device::cpu);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      t.row<double>(r)[c] = draws.bits(static_cast<std::uint64_t>(numbers.data<std::int64_t>()[r]),
                                       static_cast<std::uint64_t>(c)) < dropout.probability * 0x1p32
                                ? 0
                                : 1 / (1 - dropout.probability);
  return t;
}

struct Outcome {
  double loss = 0;
  Tensor dx, dw, da, db;
  std::vector<Tensor> gradients() const { return {dx, dw, da, db}; }
};
struct Operands {
  Tensor x, w, a, b;
  Operands to(Device device) const { return {x.to(device), w.to(device), a.to(device), b.to(device)}; }
};
Operands random_operands(std::int64_t rows, std::int64_t in, std::int64_t rank, std::int64_t vocabulary,
                         DType dtype) {
  return {random_tensor({rows, in}, dtype, 1), random_tensor({vocabulary, in}, dtype, 2, 0.3),
          random_tensor({rank, in}, dtype, 3, 0.2), random_tensor({vocabulary, rank}, dtype, 4, 0.2)};
}

/// How the operation is called.
struct Call {
  LoraDropout dropout;
  std::string variant;
  std::int64_t chunk = 16;
  double scale = 0.25;
  bool frozen = false;  // the weight
};

Outcome run(const Operands& on_host, const Labels& labels, Device device, const Call& call) {
  const KernelChoice choice = choose(call.variant);
  const Operands in = on_host.to(device);
  const Var x = intermediate(in.x), w = call.frozen ? Var(in.w) : Var::leaf(in.w), a = Var::leaf(in.a),
            b = Var::leaf(in.b);
  const LoraBranch branch{a, b, branch_scale, call.dropout};
  Tape tape;
  Context ctx{.tape = &tape, .kernels = &choice};
  const Var loss = linear_cross_entropy(ctx, x, w, labels.to(device), call.scale, call.chunk, {}, &branch);
  tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), device));
  return {value(loss), x.node()->take(), call.frozen ? Tensor() : w.grad(), a.grad(), b.grad()};
}

/// The operation on {x, weight, a, b}, or, with `computed`, on a and b that are products with a fifth tensor.
DiffFn head_of(const Tensor& labels, const LoraDropout& dropout, const KernelChoice& choice,
               std::int64_t chunk, bool computed = false) {
  return [=, &choice](Context& ctx, const std::vector<Var>& v) {
    Context chosen = ctx;
    chosen.kernels = &choice;
    const LoraBranch branch{computed ? linear(chosen, v[2], v[4]) : v[2],
                            computed ? linear(chosen, v[3], v[4]) : v[3], branch_scale, dropout};
    return std::vector<Var>{
        linear_cross_entropy(chosen, v[0], v[1], Labels(labels), 1.0, chunk, {}, &branch)};
  };
}

}  // namespace

TEST_CASE("linear_cross_entropy with an adapter: against finite differences") {
  const Tensor some = labels_of({2, -100, 0, 4, 1, -100, 3}), all = labels_of({2, 0, 0, 4, 1, 3, 3});
  const std::vector<Tensor> operands{f64({7, 3}, 1), f64({5, 3}, 2), f64({2, 3}, 3), f64({5, 2}, 4)};
  for (const std::string& name : variants()) {
    CAPTURE(name);
    const KernelChoice choice = choose(name);
    for (const std::int64_t chunk : {1, 3, 100})
      for (const Tensor& labels : {some, all})
        for (const LoraDropout& dropout : dropouts(7)) {
          CAPTURE(chunk);
          const DiffFn fn = head_of(labels, dropout, choice, chunk);
          GradCheckOptions options;
          options.unit_cotangents = true;
          CHECK_GRADIENTS(fn, operands, options);
          // Windows in wider matrices, and factors that are no leaves.
          CHECK_GRADIENTS(fn,
                          {f64({7, 6}, 1).narrow(-1, 2, 3), f64({5, 3}, 2), f64({2, 9}, 3).narrow(-1, 1, 3),
                           f64({5, 6}, 4).narrow(-1, 3, 2)},
                          options);
          CHECK_GRADIENTS(head_of(labels, dropout, choice, chunk, true),
                          {f64({7, 2}, 1), f64({5, 2}, 2), f64({2, 3}, 3), f64({5, 3}, 4), f64({2, 3}, 5)},
                          options);
          for (int wanted = 1; wanted < 15;
               ++wanted) {  // a frozen weight, an x without a gradient, A or B alone
            CAPTURE(wanted);
            options.wants = {(wanted & 1) != 0, (wanted & 2) != 0, (wanted & 4) != 0, (wanted & 8) != 0};
            CHECK_GRADIENTS(fn, operands, options);
          }
        }
  }
}

TEST_CASE("linear_cross_entropy with an adapter: all dtypes and variants, against the formulas in f64" *
          doctest::test_suite("cuda")) {
  const std::int64_t rows = 45, in = 24, rank = 8;
  for_dtypes(head_devices(), [&](Device device, DType dtype) {
    for (const std::string& name : variants())
      for (const std::int64_t vocabulary : {61, 304})
        for (const std::int64_t period : {0, 3})
          for (const std::int64_t chunk : {16, 1000})
            for (const LoraDropout& dropout : dropouts(rows, device)) {
              CAPTURE(name);
              CAPTURE(vocabulary);
              CAPTURE(period);
              CAPTURE(chunk);
              CAPTURE(dropout.probability);
              CAPTURE(static_cast<int>(dropout.position));
              const Targets targets = some_labels(rows, vocabulary, period);
              const Operands operands = random_operands(rows, in, rank, vocabulary, dtype);
              LoraOperands plain{.y = product(operands.x, false, operands.w, true),
                                 .x = operands.x,
                                 .a = operands.a,
                                 .b = operands.b,
                                 .g = Tensor::zeros({rows, vocabulary}, DType::f64, Device::cpu),
                                 .scale = branch_scale,
                                 .kept_x = factors(dropout, DropoutPosition::pre, rows, in),
                                 .kept_y = factors(dropout, DropoutPosition::post, rows, vocabulary)};
              const Expected want = reference(lora_reference(plain).y, targets);
              plain.g = times(want.dlogits, 1.0 / 64);
              const LoraResult branch = lora_reference(plain);
              const Tensor dx = product(plain.g, false, operands.w, false);
              for (std::int64_t i = 0; i < dx.numel(); ++i)
                dx.data<double>()[i] += branch.dx.data<double>()[i];
              Call call{.dropout = dropout, .variant = name, .chunk = chunk, .scale = 1.0 / 64};
              const Labels labels(labels_of(targets));
              const Outcome got = run(operands, labels, device, call);
              // As without an adapter; u and w are rounded once more, and so is what dropout keeps.
              const bool rounded_logits = dtype == DType::bf16 && name == "plain";
              const double of_gradient = dtype == DType::bf16 ? (rounded_logits ? 0x1p-6 : 0x1p-7) : 2e-6;
              CHECK(close(got.loss, want.loss, {dtype == DType::bf16 ? 0x1p-8 : 1e-6, 0}));
              CHECK(relative_error(got.dx, dx) < of_gradient);
              CHECK(relative_error(got.dw, product(plain.g, true, operands.x, false)) < of_gradient);
              CHECK(relative_error(got.da, branch.da) < of_gradient);
              CHECK(relative_error(got.db, branch.db) < of_gradient);
              call.frozen = true;  // changes nothing else
              const Outcome frozen = run(operands, labels, device, call);
              CHECK(frozen.loss == got.loss);
              CHECK_BITS(frozen.dx, got.dx);
              CHECK_BITS(frozen.da, got.da);
              CHECK_BITS(frozen.db, got.db);
            }
  });
}

// Products on the CPU have rows in multiples of 32, which may be as many as x has.
TEST_CASE(
    "linear_cross_entropy with an adapter: dropout goes by the numbers of labelled rows, however many there "
    "are") {
  for (const std::int64_t rows : {64, 60})
    for (const LoraDropout& dropout : dropouts(rows)) {
      CAPTURE(rows);
      const Operands operands = random_operands(rows, 9, 3, 21, DType::f64);
      Targets targets = some_labels(rows, 21, 0);
      targets[0] = ignored_label;
      const Labels labels(labels_of(targets));
      std::vector<Outcome> outcomes;
      for (const std::string& name : variants())
        outcomes.push_back(
            run(operands, labels, Device::cpu, {.dropout = dropout, .variant = name, .chunk = 16}));
      for (const Outcome& other : outcomes) CHECK(relative_error(other.da, outcomes[0].da) < 1e-12);
      for (const Outcome& other : outcomes) CHECK(relative_error(other.dx, outcomes[0].dx) < 1e-12);
    }
}

TEST_CASE("linear_cross_entropy with an adapter: the weight W + s B A gives the same") {
  const Operands operands = random_operands(33, 9, 3, 21, DType::f64);
  const Tensor merged = times(product(operands.b, false, operands.a, false), branch_scale);
  for (std::int64_t i = 0; i < merged.numel(); ++i) merged.data<double>()[i] += operands.w.data<double>()[i];
  const Labels labels(labels_of(some_labels(33, 21, 4)));
  for (const std::string& name : variants())
    for (const std::int64_t chunk : {1, 8, 100}) {
      CAPTURE(name);
      CAPTURE(chunk);
      const Outcome got =
          run(operands, labels, Device::cpu, {.dropout = {}, .variant = name, .chunk = chunk});
      const KernelChoice choice = choose(name);
      const Var x = Var::leaf(operands.x), w = Var::leaf(merged);
      Tape tape;
      Context ctx{.tape = &tape, .kernels = &choice};
      const Var loss = linear_cross_entropy(ctx, x, w, labels, 0.25, chunk);
      tape.backward(loss, Tensor::scalar(1, DType::f64, Device::cpu));
      CHECK(got.loss == doctest::Approx(value(loss)).epsilon(1e-13));
      CHECK(relative_error(got.dx, x.grad()) < 1e-13);
      CHECK(relative_error(got.dw, w.grad()) < 1e-13);
      // The gradient of the merged weight leads to both factors.
      const Tensor da = times(product(operands.b, true, w.grad(), false), branch_scale),
                   db = times(product(w.grad(), false, operands.a, true), branch_scale);
      CHECK(relative_error(got.da, da) < 1e-13);
      CHECK(relative_error(got.db, db) < 1e-13);
    }
}

TEST_CASE("linear_cross_entropy with an adapter: every device has the CPU's numbers" *
          doctest::test_suite("cuda")) {
  for (const Device device : head_devices())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::string& name : variants())
        for (const std::int64_t period : {0, 1, 3})
          for (std::size_t kind = 0; kind < 3; ++kind) {
            CAPTURE(device);
            CAPTURE(dtype);
            CAPTURE(name);
            CAPTURE(period);
            CAPTURE(kind);
            const Operands operands = random_operands(41, 8, 4, 29, dtype);
            const Labels labels(labels_of(some_labels(41, 29, period)));
            const auto on = [&](Device at) {
              return run(operands, labels, at, {.dropout = dropouts(41, at)[kind], .variant = name});
            };
            const Outcome got = on(device), want = on(Device::cpu);
            const double most = dtype == DType::bf16 ? 0x1p-7 : 0x1p-19;
            CHECK(close(got.loss, want.loss, {device.is_cuda() ? most : 0, 0}));
            for (std::size_t i = 0; i < 4; ++i) {
              CAPTURE(i);
              const Tensor g = got.gradients()[i], w = want.gradients()[i];
              if (device.is_cuda())
                CHECK(relative_error(g, w) <= most);
              else
                CHECK_BITS(g, w);
            }
          }
}

TEST_CASE("linear_cross_entropy with an adapter: room for labels, no label, no tape, factors of f32" *
          doctest::test_suite("cuda")) {
  for (const Device device : head_devices())
    for (const std::string& name : variants()) {
      CAPTURE(device);
      CAPTURE(name);
      const Operands operands = random_operands(41, 8, 4, 29, DType::f32);
      const Tensor targets = labels_of(some_labels(41, 29, 3));
      for (const LoraDropout& dropout : dropouts(41, device)) {
        const Call call{.dropout = dropout, .variant = name};
        const Outcome want = run(operands, Labels(targets), device, call);
        for (const std::int64_t capacity : {28, 33, 50}) {
          CAPTURE(capacity);
          const Outcome got = run(operands, Labels(targets, capacity), device, call);
          CHECK(close(got.loss, want.loss, {0x1p-20, 0}));
          for (std::size_t i = 0; i < 4; ++i)
            CHECK(relative_error(got.gradients()[i], want.gradients()[i]) <= 0x1p-20);
        }
        const Outcome none = run(operands, Labels(labels_of(Targets(41, ignored_label))), device, call);
        CHECK(none.loss == 0);
        for (const Tensor& t : none.gradients())
          CHECK_CLOSE(t, Tensor::zeros(t.shape(), t.dtype(), Device::cpu), Tol{});
        // Without a tape the same loss, and no gradient.
        const KernelChoice choice = choose(name);
        const Operands there = operands.to(device);
        const Var a = Var::leaf(there.a), b = Var::leaf(there.b);
        const LoraBranch branch{a, b, branch_scale, dropout};
        Context silent{.tape = nullptr, .kernels = &choice};
        const Var loss =
            linear_cross_entropy(silent, there.x, there.w, Labels(targets).to(device), 0.25, 16, {}, &branch);
        CHECK(value(loss) == want.loss);
        CHECK_FALSE(a.node()->filled());
        CHECK_FALSE(b.node()->filled());
      }
      // Factors of f32 beside bf16 count as their bf16 roundings; the gradients of both are f32.
      Operands narrow{operands.x.to(DType::bf16), operands.w.to(DType::bf16), operands.a, operands.b};
      const Call call{.dropout = {}, .variant = name};
      const Outcome wide = run(narrow, Labels(targets), device, call);
      narrow.a = narrow.a.to(DType::bf16);
      narrow.b = narrow.b.to(DType::bf16);
      const Outcome rounded = run(narrow, Labels(targets), device, call);
      CHECK(wide.loss == rounded.loss);
      CHECK(wide.da.dtype() == DType::f32);
      for (std::size_t i = 0; i < 4; ++i) CHECK_BITS(wide.gradients()[i], rounded.gradients()[i]);
    }
}

TEST_CASE("linear_cross_entropy with an adapter: a second step adds to what leaves hold") {
  const Tensor x = f64({9, 4}, 1), w = f64({6, 4}, 2);
  const Labels labels(labels_of(some_labels(9, 6, 4)));
  for (const std::string& name : variants()) {
    CAPTURE(name);
    const KernelChoice choice = choose(name);
    const auto after = [&](int steps) {
      const Var a = Var::leaf(f64({2, 4}, 3)), b = Var::leaf(f64({6, 2}, 4));
      for (int i = 0; i < steps; ++i) {
        Tape tape;
        Context ctx{.tape = &tape, .kernels = &choice};
        const LoraBranch branch{a, b, branch_scale, {}};
        tape.backward(linear_cross_entropy(ctx, x, w, labels, 1.0, 4, {}, &branch),
                      Tensor::scalar(1, DType::f64, Device::cpu));
      }
      return std::vector<Tensor>{a.grad().clone(), b.grad().clone()};
    };
    const auto once = after(1), twice = after(2);
    for (const std::size_t i : {0, 1}) CHECK_CLOSE(twice[i], times(once[i], 2), (Tol{1e-14, 1e-14}));
  }
}

TEST_CASE("linear_cross_entropy with an adapter: errors") {
  const Tensor x = f64({3, 2}, 1), w = f64({5, 2}, 2), labels = labels_of({0, 4, -100});
  for (const std::string& name : variants()) {
    CAPTURE(name);
    const KernelChoice choice = choose(name);
    Context ctx{.tape = nullptr, .kernels = &choice};
    const auto fault = [&](const Tensor& a, const Tensor& b) {
      const LoraBranch branch{a, b, 1, {}};
      return message_of([&] { linear_cross_entropy(ctx, x, w, labels, 1.0, 4, {}, &branch); });
    };
    CHECK(fault(f64({2, 2}, 3), f64({5, 2}, 4)) == "no error");
    CHECK(fault(f64({2, 2}, 3), f64({4, 2}, 4)) ==
          (name == "fused" ? "linear_cross_entropy: b: want 5 rows like the weight, got 4"
                           : "add_lora: y: want shape [3, 4], got [3, 5]"));
    CHECK(fault(f64({2, 3}, 3), f64({5, 2}, 4)).find("a: want ") != std::string::npos);
    CHECK(fault(f64({2, 2}, 3), f64({5, 3}, 4)) != "no error");
    CHECK(fault(f64({2, 2}, 3).to(DType::f32), f64({5, 2}, 4)) != "no error");
  }
}
