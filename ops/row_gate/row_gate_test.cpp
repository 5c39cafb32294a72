#include "ops/row_gate/row_gate.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Var intermediate(Tensor value) {
  auto node = std::make_shared<GradNode>(value.shape(), value.dtype(), value.device(), false);
  return {std::move(value), std::move(node)};
}

struct Operands {
  Tensor x, gate, dy;
};

Operands random_operands(std::int64_t rows, std::int64_t cols, DType dtype, Device device = Device::cpu) {
  return {random_tensor({rows, cols}, dtype, 1).to(device), random_tensor({rows, 1}, dtype, 2, 2).to(device),
          random_tensor({rows, cols}, dtype, 3).to(device)};
}

struct Outcome {
  Tensor y, dx, dgate;
};

Outcome run(const Operands& o, bool wants_x = true, bool wants_gate = true) {
  Tape tape;
  Context ctx{.tape = &tape};
  const Var x = wants_x ? intermediate(o.x) : Var(o.x),
            gate = wants_gate ? intermediate(o.gate) : Var(o.gate);
  const Var y = row_gate(ctx, x, gate);
  tape.backward(y, o.dy);
  return {y.value(), wants_x ? x.node()->grad() : Tensor(), wants_gate ? gate.node()->grad() : Tensor()};
}

// Elements further from the formulas of the header than its bounds, the sum and the roundings of storage
// allow; NaN is.
std::int64_t wrong_elements(const Outcome& got, const Operands& o) {
  const auto x = o.x.to_vector(), gate = o.gate.to_vector(), dy = o.dy.to_vector();
  const auto y = got.y.to_vector(), dx = got.dx.to_vector(), dgate = got.dgate.to_vector();
  REQUIRE(y.size() == x.size());
  REQUIRE(dx.size() == x.size());
  REQUIRE(dgate.size() == gate.size());
  const DType dtype = o.x.dtype();
  const double unit = dtype == DType::f64 ? 0x1p-53 : 0x1p-24, of_s = dtype == DType::f64 ? 1e-15 : 4e-7;
  const double rounding = dtype == DType::bf16 ? 0x1p-8 : 4 * unit;
  const auto cols = static_cast<std::size_t>(o.x.cols());
  // At most so many additions, one after the other, of 32 sums or more, each of whole packs, and of those.
  const double additions = static_cast<double>(cols) / 32 + 32;
  const auto near = [&](double value, double want, double error) {
    return std::abs(value - want) <= error + rounding * std::abs(want);
  };
  std::int64_t wrong = 0;
  for (std::size_t r = 0; r < gate.size(); ++r) {
    const double e = std::exp(gate[r]), s = e / (1 + e), slope = e / ((1 + e) * (1 + e));
    double sum = 0, sizes = 0;
    for (std::size_t i = r * cols; i < (r + 1) * cols; ++i) {
      wrong +=
          !near(y[i], x[i] * s, of_s * std::abs(x[i])) || !near(dx[i], dy[i] * s, of_s * std::abs(dy[i]));
      sum += dy[i] * x[i];
      sizes += std::abs(dy[i] * x[i]);
    }
    wrong += !near(dgate[r], slope * sum, of_s * std::abs(sum) + slope * additions * unit * sizes);
  }
  return wrong;
}

}  // namespace

TEST_CASE("row_gate: against the formulas" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const std::int64_t rows : {0, 1, 3, 17})
      for (const std::int64_t cols : {0, 1, 3, 7, 8, 9, 16, 33, 100, 513, 4097, 8200}) {
        if (rows == 17 && cols > 100) continue;
        CAPTURE(rows);
        CAPTURE(cols);
        const Operands o = random_operands(rows, cols, dtype, device);
        const Outcome got = run(o);
        CHECK(wrong_elements(got, o) == 0);
        CHECK(got.y.shape() == o.x.shape());
        CHECK(got.y.dtype() == dtype);
        CHECK(got.dgate.shape() == o.gate.shape());
        CHECK(got.dgate.dtype() == dtype);
      }
    // More dimensions, and one.
    const Operands o{random_tensor({2, 3, 5}, dtype, 1).to(device),
                     random_tensor({2, 3, 1}, dtype, 2).to(device),
                     random_tensor({2, 3, 5}, dtype, 3).to(device)};
    CHECK(wrong_elements(run(o), o) == 0);
    const Operands row{random_tensor({5}, dtype, 1).to(device), random_tensor({1}, dtype, 2).to(device),
                       random_tensor({5}, dtype, 3).to(device)};
    CHECK(wrong_elements(run(row), row) == 0);
  });
}

TEST_CASE("row_gate: bf16 is rounded once" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Operands o = random_operands(31, 45, DType::bf16);
    const Outcome got = run({o.x.to(device), o.gate.to(device), o.dy.to(device)}),
                  wide = run({o.x.to(DType::f32).to(device), o.gate.to(DType::f32).to(device),
                              o.dy.to(DType::f32).to(device)});
    CHECK_BITS(got.y.to(Device::cpu), wide.y.to(Device::cpu).to(DType::bf16));
    CHECK_BITS(got.dx.to(Device::cpu), wide.dx.to(Device::cpu).to(DType::bf16));
    // The order of the sum may differ: its rounding, and a rounding to bf16.
    CHECK_CLOSE(got.dgate, wide.dgate, (Tol{0x1p-8 + 0x1p-16, 1e-6}));
  }
}

TEST_CASE("row_gate: huge and infinite gates, NaN" * doctest::test_suite("cuda")) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for_dtypes([=](Device device, DType dtype) {
    const auto on = [&](const std::vector<double>& values, const Shape& shape) {
      return Tensor::from(values, shape).to(dtype).to(device);
    };
    const Operands o{on({1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, nan}, {6, 2}),
                     on({1000, -1000, inf, -inf, nan, 0}, {6, 1}),
                     on({4, 8, 4, 8, 4, 8, 4, 8, 4, 8, 4, 8}, {6, 2})};
    const Outcome got = run(o);
    const auto y = got.y.to_vector(), dx = got.dx.to_vector(), dgate = got.dgate.to_vector();
    for (std::size_t row = 0; row < 4; ++row) {
      const double s = row % 2 == 0 ? 1 : 0;
      CAPTURE(row);
      CHECK(y[2 * row] == s);
      CHECK(y[2 * row + 1] == 2 * s);
      CHECK(dx[2 * row] == 4 * s);
      CHECK(dx[2 * row + 1] == 8 * s);
      CHECK(dgate[row] == 0);
    }
    for (const double v : {y[8], y[9], dx[8], dx[9], dgate[4], y[11], dgate[5]}) CHECK(std::isnan(v));
    CHECK(y[10] == 0.5);
    CHECK(dx[10] == 2);
    CHECK(dx[11] == 4);
  });
}

TEST_CASE("row_gate: against finite differences") {
  const auto fn = [](Context& ctx, const std::vector<Var>& x) {
    return std::vector<Var>{row_gate(ctx, x[0], x[1])};
  };
  const Tensor x = random_tensor({4, 9}, DType::f64, 3), gate = random_tensor({4, 1}, DType::f64, 4, 2);
  CHECK_GRADIENTS(fn, {x, gate});
  CHECK_GRADIENTS(fn, {x, gate}, {.wants = {true, false}});
  CHECK_GRADIENTS(fn, {x, gate}, {.wants = {false, true}});
  // Windows of one value; a gate that has a gradient already, and from the rows themselves.
  CHECK_GRADIENTS(
      [](Context& ctx, const std::vector<Var>& in) {
        const std::vector<std::int64_t> widths{1, 5, 2};
        const auto parts = split_last(ctx, in[0], widths);
        const Var y = row_gate(ctx, parts[1], parts[0]);
        return std::vector<Var>{row_gate(ctx, y, parts[0]), y, parts[2]};
      },
      {random_tensor({2, 3, 8}, DType::f64, 5)});
  // One value, and one window, for both operands.
  CHECK_GRADIENTS(
      [](Context& ctx, const std::vector<Var>& in) {
        const std::vector<std::int64_t> widths{1, 2};
        const Var window = split_last(ctx, in[0], widths)[0];
        return std::vector<Var>{row_gate(ctx, window, window), row_gate(ctx, in[1], in[1])};
      },
      {random_tensor({4, 3}, DType::f64, 6), random_tensor({4, 1}, DType::f64, 7)});
}

TEST_CASE("row_gate: only one operand wants a gradient" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    const Operands o = random_operands(5, 21, dtype, device);
    const Outcome both = run(o), of_x = run(o, true, false), of_gate = run(o, false, true);
    CHECK_BITS(of_x.y, both.y);
    CHECK_BITS(of_x.dx, both.dx);
    CHECK_BITS(of_gate.dgate, both.dgate);
  });
}

TEST_CASE("row_gate: rows of every start, and a row has the bits that it has alone" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const std::int64_t start : {0, 1, 4, 8})
      for (const std::int64_t width : {1, 3, 8, 24}) {
        CAPTURE(start);
        CAPTURE(width);
        const Tensor wide = random_tensor({5, 40}, dtype, 1).to(device),
                     wide_dy = random_tensor({5, 40}, dtype, 2).to(device);
        const Operands o{wide.narrow(-1, start, width), wide.narrow(-1, 39, 1),
                         wide_dy.narrow(-1, start, width)};
        const Outcome got = run(o);
        CHECK(got.y.contiguous());
        CHECK(wrong_elements(got, o) == 0);
        const auto row = [](const Tensor& t) { return t.narrow(0, 3, 1); };
        const Outcome alone = run({row(o.x).clone(), row(o.gate).clone(), row(o.dy).clone()});
        CHECK_BITS(alone.y, row(got.y));
        CHECK_BITS(alone.dx, row(got.dx));
        CHECK_BITS(alone.dgate, row(got.dgate));
      }
  });
}

TEST_CASE("row_gate: gradients into windows, and into no other column; dy that others hold" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    const std::vector<std::int64_t> widths{2, 1, 11, 2};
    const Tensor wide = random_tensor({9, 16}, dtype, 1).to(device),
                 wide_dy = random_tensor({9, 20}, dtype, 2).to(device), keep = wide_dy.clone();
    Tape tape;
    Context ctx{.tape = &tape};
    const Var in = intermediate(wide);
    const auto parts = split_last(ctx, in, widths);
    const Var y = row_gate(ctx, parts[2], parts[1]);
    const Tensor dy = wide_dy.narrow(-1, 2, 11);
    tape.backward(y, dy);
    const Tensor d = in.node()->grad();
    CHECK(wrong_elements({y.value(), d.narrow(-1, 3, 11), d.narrow(-1, 2, 1)},
                         {wide.narrow(-1, 3, 11), wide.narrow(-1, 2, 1), dy}) == 0);
    for (const Tensor& other : {d.narrow(-1, 0, 2), d.narrow(-1, 14, 2)})
      for (const double v : other.to_vector()) CHECK(v == 0);
    CHECK_BITS(wide_dy, keep);
  });
}

TEST_CASE("row_gate: forward takes the place of a value that was given away, of no other" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Operands o = random_operands(7, 33, DType::bf16, device);
    const Tensor keep = o.x.clone(), want = run(o).y;
    Context ctx;
    const auto given = [&o](const void*& place) {
      Tensor own = o.x.clone();
      place = own.address();
      return intermediate(std::move(own));
    };
    const void* place = nullptr;
    Var in = given(place);
    Var y = row_gate(ctx, std::move(in), o.gate);
    CHECK(y.value().address() == place);
    CHECK_BITS(y.value(), want);
    CHECK_BITS(row_gate(ctx, o.x, o.gate).value(), want);
    CHECK_BITS(o.x, keep);
    Tensor wide = random_tensor({7, 40}, DType::bf16, 3).to(device);
    Var window = intermediate(wide.narrow(-1, 0, 33));
    wide = {};
    CHECK(row_gate(ctx, std::move(window), o.gate).value().contiguous());
    Var leaf = Var::leaf(o.x.clone());
    const void* weights = leaf.value().address();
    CHECK(row_gate(ctx, std::move(leaf), o.gate).value().address() != weights);
    // Recorded: backward needs x for the gradient of gate only.
    Tape tape;
    ctx.tape = &tape;
    in = given(place);
    y = row_gate(ctx, std::move(in), intermediate(o.gate));
    CHECK(y.value().address() != place);
    CHECK_BITS(y.value(), want);
    in = given(place);
    const auto node = in.node();
    y = row_gate(ctx, std::move(in), o.gate);
    CHECK(y.value().address() == place);
    tape.backward(y, o.dy);
    CHECK_BITS(y.value(), want);
    CHECK_BITS(node->grad(), run(o).dx);
  }
}

TEST_CASE("row_gate: borrowed memory, perhaps a file's, is left alone") {
  std::vector<double> values{-2, 3, 5};
  Context ctx;
  const auto owner = std::make_shared<const int>(0);
  const Tensor y = row_gate(ctx, Tensor::borrow(values.data(), {3}, DType::f64, owner),
                            Tensor::zeros({1}, DType::f64, Device::cpu))
                       .value();
  CHECK(y.to_vector() == std::vector<double>{-1, 1.5, 2.5});
  CHECK(values == std::vector<double>{-2, 3, 5});
}

TEST_CASE("row_gate: backward writes over what nobody else holds, over nothing else" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (int held = 0; held < 4; ++held) {
      CAPTURE(device);
      const bool holds_x = held & 1, holds_dy = held & 2;
      CAPTURE(holds_x);
      CAPTURE(holds_dy);
      const Operands keep = random_operands(7, 33, DType::f32, device);
      const Outcome want = run(keep);
      Tensor x = keep.x.clone(), dy = keep.dy.clone();
      const void *x_place = x.address(), *dy_place = dy.address();
      const Tensor other_x = holds_x ? x : Tensor(), other_dy = holds_dy ? dy : Tensor();
      Tape tape;
      Context ctx{.tape = &tape};
      Var in = intermediate(std::move(x));
      x = {};
      const Var gate = intermediate(keep.gate);
      const auto node = in.node();
      const Var y = row_gate(ctx, std::move(in), gate);
      y.node()->add(std::move(dy));
      dy = {};
      tape.backward(Var(keep.dy), keep.dy);  // the seed lies in the node
      const void* place = node->grad().address();
      if (!holds_x) CHECK(place == x_place);
      if (holds_x && !holds_dy) CHECK(place == dy_place);
      CHECK_BITS(node->grad(), want.dx);
      CHECK_BITS(gate.node()->grad(), want.dgate);
      CHECK_BITS(y.value(), want.y);
      if (holds_x) CHECK_BITS(other_x, keep.x);
      if (holds_dy) CHECK_BITS(other_dy, keep.dy);
    }
}

TEST_CASE("row_gate: bits do not depend on the number of threads, nor on the call" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(device);
      const Operands wide = random_operands(37, 1003, dtype, device);
      const Operands window{wide.x.narrow(-1, 1, 1001), wide.gate, wide.dy.narrow(-1, 2, 1001)};
      const int before = omp_get_max_threads();
      for (const Operands& o : {wide, window}) {
        omp_set_num_threads(1);
        const Outcome one = run(o);
        omp_set_num_threads(3);
        const Outcome three = run(o);
        omp_set_num_threads(before);
        CHECK_BITS(one.y, three.y);
        CHECK_BITS(one.dx, three.dx);
        CHECK_BITS(one.dgate, three.dgate);
      }
    }
}

TEST_CASE("row_gate: leaves in bf16, nothing recorded without need" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    Tape tape;
    Context ctx{.tape = &tape};
    const Operands o = random_operands(3, 4, DType::bf16, device);
    CHECK_FALSE(row_gate(ctx, o.x, o.gate).needs_grad());
    CHECK(tape.size() == 0);
    const Var x = Var::leaf(o.x), gate = Var::leaf(o.gate);
    const Outcome want = run(o);
    for (int pass = 1; pass <= 2; ++pass) {
      tape.backward(row_gate(ctx, x, gate), o.dy);
      const auto sum = [&](const Tensor& once) {
        auto values = once.to_vector();
        for (double& v : values) v *= pass;
        return Tensor::from(values, once.shape());
      };
      CHECK_CLOSE(x.grad(), sum(want.dx), (Tol{}));
      CHECK_CLOSE(gate.grad(), sum(want.dgate), (Tol{}));
    }
  }
}

TEST_CASE("row_gate: errors" * doctest::test_suite("cuda")) {
  Context ctx;
  const auto fault = [&](const Tensor& x, const Tensor& gate) {
    return message_of([&] { row_gate(ctx, x, gate); });
  };
  for (const Device device : test_devices()) {
    const Tensor x = Tensor::zeros({2, 3}, DType::f32, device),
                 gate = Tensor::zeros({2, 1}, DType::f32, device),
                 whole = Tensor::zeros({2, 3}, DType::i32, device);
    CHECK(fault(Tensor(), gate) == "row_gate: x: got no tensor");
    CHECK(fault(x, Tensor()) == "row_gate: gate: got no tensor");
    CHECK(fault(whole, gate) == "row_gate: x: want f32, f64 or bf16, got i32");
    CHECK(fault(Tensor::scalar(1, DType::f32, device), gate) == "row_gate: x: want at least one dimension");
    CHECK(fault(x, gate.to(DType::bf16)) == "row_gate: gate: want f32, got bf16");
    CHECK(fault(x, x) == "row_gate: gate: want shape [2, 1], got [2, 3]");
    CHECK(fault(x, Tensor::zeros({2}, DType::f32, device)) == "row_gate: gate: want shape [2, 1], got [2]");
  }
  if (has_cuda()) {
    const Tensor x = Tensor::zeros({2, 2}, DType::f64, Device::cuda);
    CHECK(fault(x, x.narrow(-1, 0, 1)) == "row_gate on cuda: want f32 or bf16, got f64");
  }
}
