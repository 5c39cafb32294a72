#include "ops/gated_activation/gated_activation.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "core/allocator.h"
#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

constexpr GateActivation all_gates[] = {GateActivation::silu, GateActivation::gelu_tanh,
                                        GateActivation::sigmoid};

struct Operands {
  Tensor gate, up, dy;
  Operands copy() const { return {gate.clone(), up.clone(), dy.clone()}; }
};

Operands random_operands(const Shape& shape, DType dtype, Device device = Device::cpu) {
  return {random_tensor(shape, dtype, 1, 2).to(device), random_tensor(shape, dtype, 2).to(device),
          random_tensor(shape, dtype, 3).to(device)};
}

Var intermediate(Tensor value) {
  auto node = std::make_shared<GradNode>(value.shape(), value.dtype(), value.device(), false);
  return {std::move(value), std::move(node)};
}

struct Outcome {
  Tensor y, dgate, dup;
};

Outcome run(const Operands& o, GateActivation phi, bool wants_gate = true, bool wants_up = true) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var gate = wants_gate ? intermediate(o.gate) : Var(o.gate),
            up = wants_up ? intermediate(o.up) : Var(o.up);
  const Var y = gated_activation(ctx, gate, up, phi);
  tape.backward(y, o.dy);
  return {y.value(), wants_gate ? gate.node()->grad() : Tensor(), wants_up ? up.node()->grad() : Tensor()};
}

struct Activated {
  double value, slope;
};

// The formulas of the header.
Activated activated(double g, GateActivation phi) {
  if (phi == GateActivation::silu) {
    const double s = 1 / (1 + std::exp(-g));
    return {g * s, s * (1 + g * (1 - s))};
  }
  if (phi == GateActivation::sigmoid) return {1 / (1 + std::exp(-g)), 1 / (2 + std::exp(g) + std::exp(-g))};
  const double c = std::sqrt(2 / 3.14159265358979323846), t = std::tanh(c * (g + 0.044715 * g * g * g));
  return {g / 2 * (1 + t), (1 + t) / 2 + g / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * g * g)};
}

// What bounds the error of phi at g is a multiple of.
double size_of_value(double g, GateActivation phi) {
  return phi == GateActivation::sigmoid ? 1 : std::abs(g);
}

// A bound of the errors of phi (times its size) and of phi', and of the roundings of products and of storage.
struct Bounds {
  double value, slope, rounding;
};

Bounds bounds_of(DType dtype, GateActivation phi) {
  const bool plain = phi == GateActivation::sigmoid;
  if (dtype == DType::f64) return {1e-15, plain ? 1e-15 : 2e-14, 0x1p-51};
  return {4e-7, plain ? 4e-7 : 6e-6, dtype == DType::f32 ? 0x1p-22 : 0x1p-8 + 0x1p-22};
}

// Elements further from the formulas than the bounds allow; NaN is.
std::int64_t wrong_elements(const Outcome& got, const Operands& o, GateActivation phi) {
  const auto gate = o.gate.to_vector(), up = o.up.to_vector(), dy = o.dy.to_vector();
  const auto y = got.y.to_vector(), dgate = got.dgate.to_vector(), dup = got.dup.to_vector();
  REQUIRE(y.size() == gate.size());
  REQUIRE(dgate.size() == gate.size());
  REQUIRE(dup.size() == gate.size());
  const Bounds b = bounds_of(o.gate.dtype(), phi);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const auto near = [&](double value, double want, double error) {
      return std::abs(value - want) <= error + b.rounding * std::abs(want);
    };
    const double g = gate[i], u = up[i], d = dy[i];
    const Activated a = activated(g, phi);
    const double value_error = b.value * size_of_value(g, phi);
    wrong += !near(y[i], a.value * u, value_error * std::abs(u)) ||
             !near(dup[i], d * a.value, value_error * std::abs(d)) ||
             !near(dgate[i], d * u * a.slope, b.slope * std::abs(d * u));
  }
  return wrong;
}

template <class Test>
void for_gates(Test&& test) {
  for (const GateActivation phi : all_gates) {
    CAPTURE(static_cast<int>(phi));
    test(phi);
  }
}

}  // namespace

TEST_CASE("gated_activation: against the formulas" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for_gates([&](GateActivation phi) {
      for (const std::int64_t rows : {0, 1, 5})
        for (const std::int64_t cols : {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 4095, 4096, 4097}) {
          CAPTURE(rows);
          CAPTURE(cols);
          const Operands o = random_operands({rows, cols}, dtype, device);
          const Outcome got = run(o, phi);
          CHECK(wrong_elements(got, o, phi) == 0);
          CHECK(got.y.shape() == o.gate.shape());
          CHECK(got.y.dtype() == dtype);
        }
    });
  });
}

TEST_CASE("gated_activation: gates from -40 to 40 keep the bounds of the contract" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for_gates([&](GateActivation phi) {
      std::vector<double> gates;
      for (int i = -4000; i <= 4000; ++i) gates.push_back(i * 0.01);
      const auto n = static_cast<std::int64_t>(gates.size());
      const Tensor ones = Tensor::empty({n}, dtype, device);
      ones.fill(1);
      const Operands o{Tensor::from(gates, {n}).to(dtype).to(device), ones, ones};
      CHECK(wrong_elements(run(o, phi), o, phi) == 0);
    });
  });
}

TEST_CASE("gated_activation: huge, tiny and infinite values, NaN" * doctest::test_suite("cuda")) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for_dtypes([=](Device device, DType dtype) {
    for_gates([&](GateActivation phi) {
      const auto filled = [&](const std::vector<double>& values) {
        return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).to(dtype).to(device);
      };
      const std::vector<double> large{100, 900, 1100, 1e13, 1e20, 3e38, inf}, tiny{0, 1e-30, 1e-10};
      std::vector<double> gates;
      for (const double v : large) gates.insert(gates.end(), {v, -v});
      for (const double v : tiny) gates.insert(gates.end(), {v, -v});
      const std::size_t first_tiny = 2 * large.size();
      const bool plain = phi == GateActivation::sigmoid;
      // Powers of two, so that products are exact.
      const Operands o{filled(gates), filled(std::vector<double>(gates.size(), 0.5)),
                       filled(std::vector<double>(gates.size(), 0.25))};
      const Outcome got = run(o, phi);
      const auto g = o.gate.to_vector(), y = got.y.to_vector(), dgate = got.dgate.to_vector(),
                 dup = got.dup.to_vector();
      for (std::size_t i = 0; i < g.size(); ++i) {
        CAPTURE(g[i]);
        if (i < first_tiny) {
          // Where g is -100 the f64 values are small, but not 0.
          const double value = g[i] < 0 ? 0
                               : plain  ? 1
                                        : g[i],
                       slope = g[i] > 0 && !plain ? 1 : 0, least = 1e-35;
          CHECK((y[i] == value / 2 || std::abs(y[i] - value / 2) < least));
          CHECK((dup[i] == value / 4 || std::abs(dup[i] - value / 4) < least));
          CHECK(std::abs(dgate[i] - slope / 8) < least);
        } else {
          const double unit = dtype == DType::bf16 ? 0x1p-7 : 1e-6, size = size_of_value(g[i], phi);
          const double value = plain ? 0.5 : g[i] / 2, slope = plain ? 0.25 : 0.5;
          CHECK(std::abs(y[i] - value / 2) <= unit * size);
          CHECK(std::abs(dup[i] - value / 4) <= unit * size);
          CHECK(std::abs(dgate[i] - slope / 8) <= unit);
        }
      }
      const Outcome with_nan = run({filled({nan, 1, 1}), filled({1, nan, 1}), filled({1, 1, nan})}, phi);
      const auto isnan = [](const Tensor& t) {
        std::vector<bool> result;
        for (const double v : t.to_vector()) result.push_back(std::isnan(v));
        return result;
      };
      CHECK(isnan(with_nan.y) == std::vector{true, true, false});
      CHECK(isnan(with_nan.dgate) == std::vector{true, true, true});
      CHECK(isnan(with_nan.dup) == std::vector{true, false, true});
    });
  });
}

TEST_CASE("gated_activation: bf16 is rounded once" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for_gates([&](GateActivation phi) {
      const Operands o = random_operands({31, 13}, DType::bf16, device);
      const Outcome got = run(o, phi), wide = run({o.gate.to(Device::cpu).to(DType::f32).to(device),
                                                   o.up.to(Device::cpu).to(DType::f32).to(device),
                                                   o.dy.to(Device::cpu).to(DType::f32).to(device)},
                                                  phi);
      CHECK_BITS(got.y.to(Device::cpu), wide.y.to(Device::cpu).to(DType::bf16));
      CHECK_BITS(got.dgate.to(Device::cpu), wide.dgate.to(Device::cpu).to(DType::bf16));
      CHECK_BITS(got.dup.to(Device::cpu), wide.dup.to(Device::cpu).to(DType::bf16));
    });
}

TEST_CASE("gated_activation: windows of one projection, gradients into windows, dy that others hold" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    // Odd widths, and widths whose windows start at whole packs.
    for (const std::int64_t width : {1, 11, 16, 24}) {
      CAPTURE(width);
      const std::vector<std::int64_t> widths{width, width, 8};
      const Tensor wide = random_tensor({9, 2 * width + 8}, dtype, 1).to(device),
                   wide_dy = random_tensor({9, width + 16}, dtype, 2).to(device), keep = wide_dy.clone();
      const Operands o{wide.narrow(-1, 0, width), wide.narrow(-1, width, width),
                       wide_dy.narrow(-1, 8, width)};
      for_gates([&](GateActivation phi) {
        Tape tape;
        Context ctx;
        ctx.tape = &tape;
        const Var x = intermediate(wide);
        const auto parts = split_last(ctx, x, widths);
        const Var y = gated_activation(ctx, parts[0], parts[1], phi);
        tape.backward(y, o.dy);
        const Tensor dx = x.node()->grad();
        CHECK(y.value().contiguous());
        CHECK(wrong_elements({y.value(), dx.narrow(-1, 0, width), dx.narrow(-1, width, width)}, o, phi) == 0);
        for (const double v : dx.narrow(-1, 2 * width, 8).to_vector()) CHECK(v == 0);
        CHECK_BITS(wide_dy, keep);
      });
    }
  });
}

TEST_CASE("gated_activation: both operands in one tensor" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const std::int64_t width : {1, 11, 16}) {
      CAPTURE(width);
      const Tensor wide = random_tensor({9, 2 * width}, dtype, 1, 2).to(device),
                   dy = random_tensor({9, width}, dtype, 2).to(device), keep = wide.clone();
      const Operands o{wide.narrow(-1, 0, width), wide.narrow(-1, width, width), dy};
      for_gates([&](GateActivation phi) {
        const Outcome want = run(o, phi);
        const auto check = [&](Var x, bool in_place) {
          Tape tape;
          Context ctx;
          ctx.tape = &tape;
          const std::shared_ptr<GradNode> node = x.node();
          const void* const place = x.value().address();
          const Var y = gated_activation(ctx, std::move(x), phi);
          const Tensor first = y.value().clone(), again = y.node()->again();
          tape.backward(y, o.dy.clone());
          CHECK_BITS(first, want.y);
          CHECK_BITS(again, want.y);
          const Tensor dx = node->grad();
          CHECK((dx.address() == place) == in_place);
          CHECK_BITS(dx.narrow(-1, 0, width).as_contiguous(), want.dgate);
          CHECK_BITS(dx.narrow(-1, width, width).as_contiguous(), want.dup);
        };
        check(intermediate(wide.clone()), true);
        check(intermediate(wide), false);  // `wide` is another holder
        CHECK_BITS(wide, keep);
        Context ctx;
        CHECK_BITS(gated_activation(ctx, Var(wide), phi).value(), want.y);
      });
    }
    Context ctx;
    const Tensor odd = Tensor::zeros({2, 3}, dtype, device);
    CHECK_THROWS_WITH_AS(gated_activation(ctx, Var(odd), GateActivation::silu),
                         "gated_activation: gate_up: want an even last dimension, got shape [2, 3]", Error);
    CHECK(gated_activation(ctx, Var(Tensor::zeros({0, 4}, dtype, device)), GateActivation::silu).shape() ==
          Shape{0, 2});
  });
}

TEST_CASE("gated_activation: rows of every alignment" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const std::int64_t start : {0, 1, 4, 8})
        for (const std::int64_t width : {1, 3, 8, 19, 24}) {
          CAPTURE(device);
          CAPTURE(dtype);
          CAPTURE(start);
          CAPTURE(width);
          const Operands wide = random_operands({5, 32}, dtype, device);
          // One operand in a window, the others contiguous.
          for (int which = 0; which < 3; ++which) {
            const auto part = [&](const Tensor& t, int own) {
              const Tensor window = t.narrow(-1, start, width);
              return own == which ? window : window.clone();
            };
            const Operands o{part(wide.gate, 0), part(wide.up, 1), part(wide.dy, 2)};
            for_gates([&](GateActivation phi) { CHECK(wrong_elements(run(o, phi), o, phi) == 0); });
          }
        }
}

TEST_CASE("gated_activation: bits do not depend on the number of threads") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Operands o = random_operands({37, 5003}, dtype);
    const Operands windows{o.gate.narrow(-1, 1, 5001), o.up.narrow(-1, 2, 5001), o.dy.narrow(-1, 0, 5001)};
    const int before = omp_get_max_threads();
    for (const Operands& operands : {o, windows})
      for_gates([&](GateActivation phi) {
        omp_set_num_threads(1);
        const Outcome one = run(operands, phi);
        omp_set_num_threads(3);
        const Outcome three = run(operands, phi);
        omp_set_num_threads(before);
        CHECK_BITS(one.y, three.y);
        CHECK_BITS(one.dgate, three.dgate);
        CHECK_BITS(one.dup, three.dup);
      });
  }
}

TEST_CASE("gated_activation: forward takes the place of a value that was given away, of no other" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Operands o = random_operands({7, 33}, DType::bf16, device), keep = o.copy();
    const GateActivation phi = GateActivation::silu;
    const Tensor want = run(o, phi).y;
    Context ctx;
    // Values with a node, as under a tape that is not there: the place may be taken all the same.
    const auto given = [](const Tensor& t, const void*& place) {
      Tensor own = t.clone();
      place = own.address();
      return intermediate(std::move(own));
    };
    const auto peak_rises = [device](auto&& work) {
      allocator(device).reset_peak();
      const std::int64_t before = allocator(device).stats().current_bytes;
      work();
      return allocator(device).stats().peak_bytes > before;
    };
    const void *gate_place = nullptr, *up_place = nullptr;
    Var gate = given(o.gate, gate_place), up = given(o.up, up_place), y;
    CHECK_FALSE(peak_rises([&] { y = gated_activation(ctx, std::move(gate), std::move(up), phi); }));
    CHECK(y.value().address() == gate_place);
    CHECK_BITS(y.value(), want);

    up = given(o.up, up_place);
    CHECK_FALSE(peak_rises([&] { y = gated_activation(ctx, o.gate, std::move(up), phi); }));
    CHECK(y.value().address() == up_place);
    CHECK_BITS(y.value(), want);

    CHECK(peak_rises([&] { y = gated_activation(ctx, o.gate, o.up, phi); }));
    CHECK_BITS(y.value(), want);
    CHECK_BITS(o.gate, keep.gate);
    CHECK_BITS(o.up, keep.up);

    // Windows of one projection that nobody else holds, and leaves.
    Tensor wide = random_tensor({7, 66}, DType::bf16, 3).to(device);
    const void* projection = wide.address();
    Var left = wide.narrow(-1, 0, 33), right = wide.narrow(-1, 33, 33);
    wide = {};
    y = gated_activation(ctx, std::move(left), std::move(right), phi);
    CHECK(y.value().contiguous());
    CHECK(y.value().address() != projection);
    Var weights = Var::leaf(o.gate.clone()), others = Var::leaf(o.up.clone());
    const void *weight_place = weights.value().address(), *other_place = others.value().address();
    y = gated_activation(ctx, std::move(weights), std::move(others), phi);
    CHECK(y.value().address() != weight_place);
    CHECK(y.value().address() != other_place);

    // Recorded: backward needs both.
    Tape tape;
    ctx.tape = &tape;
    gate = given(o.gate, gate_place);
    y = gated_activation(ctx, std::move(gate), given(o.up, up_place), phi);
    CHECK(y.value().address() != gate_place);
    CHECK(y.value().address() != up_place);
    CHECK_BITS(y.value(), want);
  }
}

TEST_CASE("gated_activation: borrowed memory, perhaps a file's, is left alone") {
  std::vector<double> values{-2, 3, 5};
  Context ctx;
  const auto owner = std::make_shared<const int>(0);
  const auto borrowed = [&] { return Tensor::borrow(values.data(), {3}, DType::f64, owner); };
  const Tensor y = gated_activation(ctx, borrowed(), borrowed(), GateActivation::silu).value();
  CHECK(y.to_vector()[1] == doctest::Approx(9 / (1 + std::exp(-3.0))));
  CHECK(values == std::vector<double>{-2, 3, 5});
}

TEST_CASE("gated_activation: backward writes over what nobody else holds, over nothing else" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (int held = 0; held < 8; ++held) {
      CAPTURE(device);
      const bool holds_gate = held & 1, holds_up = held & 2, holds_dy = held & 4;
      CAPTURE(holds_gate);
      CAPTURE(holds_up);
      CAPTURE(holds_dy);
      const GateActivation phi = GateActivation::gelu_tanh;
      const Operands keep = random_operands({7, 33}, DType::f32, device);
      const Outcome want = run(keep, phi);
      Operands o = keep.copy();
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      Var gate = intermediate(o.gate), up = intermediate(o.up);
      const auto gate_node = gate.node(), up_node = up.node();
      const void *gate_place = o.gate.address(), *up_place = o.up.address(), *dy_place = o.dy.address();
      Operands others;
      if (holds_gate) others.gate = o.gate;
      if (holds_up) others.up = o.up;
      if (holds_dy) others.dy = o.dy;
      o.gate = o.up = {};
      const Var y = gated_activation(ctx, std::move(gate), std::move(up), phi);
      y.node()->add(std::move(o.dy));

      allocator(device).reset_peak();
      const std::int64_t before = allocator(device).stats().current_bytes;
      tape.backward(Var(keep.dy), keep.dy);  // the seed lies in the node
      const bool allocated = allocator(device).stats().peak_bytes > before;

      const void *dgate_place = gate_node->grad().address(), *dup_place = up_node->grad().address();
      const bool dgate_in_dy = holds_gate && !holds_dy;
      if (!holds_gate) CHECK(dgate_place == gate_place);
      if (dgate_in_dy) CHECK(dgate_place == dy_place);
      if (!holds_up) CHECK(dup_place == up_place);
      const bool dup_in_dy = holds_up && !holds_dy && !dgate_in_dy;
      if (dup_in_dy) CHECK(dup_place == dy_place);
      CHECK(allocated == ((holds_gate && !dgate_in_dy) || (holds_up && !dup_in_dy)));
      CHECK_BITS(gate_node->grad(), want.dgate);
      CHECK_BITS(up_node->grad(), want.dup);
      CHECK_BITS(y.value(), want.y);
      if (holds_gate) CHECK_BITS(others.gate, keep.gate);
      if (holds_up) CHECK_BITS(others.up, keep.up);
      if (holds_dy) CHECK_BITS(others.dy, keep.dy);
    }
}

TEST_CASE("gated_activation: against finite differences") {
  for_gates([](GateActivation phi) {
    const auto activation = [phi](Context& ctx, const std::vector<Var>& x) {
      return std::vector<Var>{gated_activation(ctx, x[0], x[1], phi)};
    };
    const Tensor gate = random_tensor({4, 9}, DType::f64, 3, 2), up = random_tensor({4, 9}, DType::f64, 4);
    CHECK_GRADIENTS(activation, {gate, up});
    CHECK_GRADIENTS(activation, {gate, up}, {.wants = {true, false}});
    CHECK_GRADIENTS(activation, {gate, up}, {.wants = {false, true}});
    CHECK_GRADIENTS(
        [phi](Context& ctx, const std::vector<Var>& x) {
          const std::vector<std::int64_t> widths{3, 2, 3};
          const auto parts = split_last(ctx, x[0], widths);
          const Var y = gated_activation(ctx, parts[0], parts[2], phi);
          return std::vector<Var>{gated_activation(ctx, y, y, phi), y, parts[1]};
        },
        {random_tensor({2, 3, 8}, DType::f64, 5)});
    // One value, and one window, for both operands.
    CHECK_GRADIENTS(
        [phi](Context& ctx, const std::vector<Var>& x) {
          const std::vector<std::int64_t> widths{3, 2};
          const Var window = split_last(ctx, x[0], widths)[0];
          return std::vector<Var>{gated_activation(ctx, x[0], x[0], phi),
                                  gated_activation(ctx, window, window, phi)};
        },
        {random_tensor({3, 5}, DType::f64, 6)});
  });
}

TEST_CASE("gated_activation: only one operand wants a gradient" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for_gates([&](GateActivation phi) {
      const Operands o = random_operands({3, 21}, dtype, device);
      const Outcome both = run(o, phi);
      CHECK_BITS(run(o, phi, true, false).dgate, both.dgate);
      CHECK_BITS(run(o, phi, false, true).dup, both.dup);
    });
  });
}

TEST_CASE("gated_activation: leaves in bf16, scalars, nothing recorded without need" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const Operands o = random_operands({3, 4}, DType::bf16, device);
    const GateActivation phi = GateActivation::silu;
    CHECK_FALSE(gated_activation(ctx, o.gate, o.up, phi).needs_grad());
    CHECK(tape.size() == 0);
    const Var gate = Var::leaf(o.gate), up = Var::leaf(o.up);
    const Outcome want = run(o, phi);
    for (int pass = 1; pass <= 2; ++pass) {
      tape.backward(gated_activation(ctx, gate, up, phi), o.dy);
      const auto sum = [&](const Tensor& once) {
        auto values = once.to_vector();
        for (double& v : values) v *= pass;
        return Tensor::from(values, once.shape());
      };
      CHECK_CLOSE(gate.grad(), sum(want.dgate), (Tol{}));
      CHECK_CLOSE(up.grad(), sum(want.dup), (Tol{}));
    }
    const Var scalar = gated_activation(ctx, Tensor::scalar(1, DType::f32, device),
                                        Tensor::scalar(3, DType::f32, device), GateActivation::gelu_tanh);
    CHECK(scalar.value().item<float>() == doctest::Approx(3 * 0.8411919906).epsilon(1e-6));
  }
}

TEST_CASE("gated_activation: errors" * doctest::test_suite("cuda")) {
  Context ctx;
  const auto run_on = [&](const Tensor& gate, const Tensor& up) {
    gated_activation(ctx, gate, up, GateActivation::silu);
  };
  for (const Device device : test_devices()) {
    const Tensor x = Tensor::zeros({2, 3}, DType::f32, device),
                 whole = Tensor::zeros({2, 3}, DType::i32, device);
    CHECK_THROWS_WITH_AS(run_on(Tensor(), x), "gated_activation: gate: got no tensor", Error);
    CHECK_THROWS_WITH_AS(run_on(x, Tensor()), "gated_activation: up: got no tensor", Error);
    CHECK_THROWS_WITH_AS(run_on(whole, whole), "gated_activation: gate: want f32, f64 or bf16, got i32",
                         Error);
    CHECK_THROWS_WITH_AS(run_on(x, x.to(DType::bf16)), "gated_activation: up: want f32, got bf16", Error);
    CHECK_THROWS_WITH_AS(run_on(x, x.narrow(-1, 0, 2)), "gated_activation: up: want shape [2, 3], got [2, 2]",
                         Error);
  }
  if (has_cuda()) {
    const Tensor x = Tensor::zeros({2, 2}, DType::f64, Device::cuda);
    CHECK_THROWS_WITH_AS(run_on(x, x), "gated_activation on cuda: want f32 or bf16, got f64", Error);
  }
}
