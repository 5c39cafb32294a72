#include "ops/scale_by/scale_by.h"

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

std::shared_ptr<GradNode> node_of(const Tensor& x) {
  return std::make_shared<GradNode>(x.shape(), x.dtype(), x.device(), false);
}

struct Outcome {
  Tensor y, dx;
};

Outcome run(const Tensor& x, const Tensor& dy, const Tensor& s) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var in(x, node_of(x));
  const Var y = scale_by(ctx, in, s);
  tape.backward(y, dy);
  return {y.value(), in.node()->grad()};
}

Tensor reference(const Tensor& x, const Tensor& s) {
  auto values = x.to_vector();
  for (double& v : values) v *= s.to_vector()[0];
  return Tensor::from(values, x.shape());
}

/// A product is rounded once.
Tol tol_of(DType dtype) {
  return {dtype == DType::f64 ? 0x1p-52 : dtype == DType::f32 ? 0x1p-23 : 0x1p-8, 0};
}

Tensor number(double value, DType dtype, Device device) {
  return Tensor::from<double>({value}, {1}).to(dtype).to(device);
}

}  // namespace

TEST_CASE("scale_by: against the formula" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const std::int64_t rows : {0, 1, 5})
      for (const std::int64_t cols : {0, 1, 7, 16, 33, 4097}) {
        CAPTURE(rows);
        CAPTURE(cols);
        const Tensor x = random_tensor({rows, cols}, dtype, 1).to(device),
                     dy = random_tensor({rows, cols}, dtype, 2).to(device);
        for (const DType of_s : {dtype, accumulate_dtype(dtype)}) {
          const Tensor s = number(0.8, of_s, device);
          const Outcome got = run(x, dy, s);
          CHECK_CLOSE(got.y, reference(x, s), tol_of(dtype));
          CHECK_CLOSE(got.dx, reference(dy, s), tol_of(dtype));
          CHECK(got.y.dtype() == dtype);
        }
      }
    // Further dimensions, and a factor without any.
    const Tensor x = random_tensor({2, 3, 8}, dtype, 1).to(device);
    CHECK_CLOSE(run(x, x, number(-0.5, dtype, device).reshape({})).y,
                reference(x, number(-0.5, dtype, device)), (Tol{0, 0}));
  });
}

TEST_CASE("scale_by: an f32 factor of bf16 values is not rounded" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor three = Tensor::from<double>({3}, {1}).to(DType::bf16).to(device);
    // s is 1 + 2^-7 in bf16. Near 3 bf16 has steps of 2^-6.
    const double s = 1 + 0x1p-8 + 0x1p-10;
    CHECK(run(three, three, number(s, DType::f32, device)).y.to_vector()[0] == 3 + 0x1p-6);
    CHECK(run(three, three, number(s, DType::bf16, device)).y.to_vector()[0] == 3 + 0x1p-5);
  }
}

TEST_CASE("scale_by: the result takes the place of a value that was given away, of no other" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor s = number(1.5, DType::f32, device);
    const Tensor x = random_tensor({7, 33}, DType::f32, 1).to(device),
                 dy = random_tensor({7, 33}, DType::f32, 2).to(device), kept = dy.clone();
    const Outcome want = run(x, dy, s);
    CHECK_BITS(dy, kept);  // somebody else holds it
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    Tensor own = x.clone();
    const void* place = own.address();
    const auto in = node_of(x);
    Var given(std::move(own), in);
    own = {};
    const Var y = scale_by(ctx, std::move(given), s);
    CHECK(y.value().address() == place);
    Tensor back = dy.clone();
    const void* back_place = back.address();
    y.node()->add(back);
    back = {};
    tape.backward(Var(x), x);
    CHECK(in->grad().address() == back_place);
    CHECK_BITS(y.value(), want.y);
    CHECK_BITS(in->grad(), want.dx);

    const Tensor shared = x.clone();
    CHECK(scale_by(ctx, Var(shared, node_of(x)), s).value().address() != shared.address());
    CHECK_BITS(shared, x);
    Var leaf = Var::leaf(x.clone());
    const void* weights = leaf.value().address();
    CHECK(scale_by(ctx, std::move(leaf), s).value().address() != weights);
  }
}

TEST_CASE("scale_by: against finite differences") {
  const auto fn = [](Context& ctx, const std::vector<Var>& x) {
    const Var y = scale_by(ctx, x[0], number(0.7, DType::f64, Device::cpu));
    return std::vector<Var>{scale_by(ctx, y, number(-3, DType::f64, Device::cpu)), y};
  };
  CHECK_GRADIENTS(fn, {random_tensor({4, 9}, DType::f64, 3)});
}

TEST_CASE("scale_by: strided rows, gradients into windows" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (const std::int64_t start : {1, 4, 8})
      for (const std::int64_t width : {3, 8, 19, 24}) {
        CAPTURE(start);
        CAPTURE(width);
        const std::vector<std::int64_t> widths{start, width, 40 - start - width};
        const Tensor wide = random_tensor({9, 40}, DType::f32, 1).to(device),
                     dy = random_tensor({9, 40}, DType::f32, 2).to(device).narrow(-1, start, width),
                     s = number(0.3, DType::f32, device);
        Tape tape;
        Context ctx;
        ctx.tape = &tape;
        const Var x = Var::leaf(wide);
        const Var y = scale_by(ctx, split_last(ctx, x, widths)[1], s);
        tape.backward(y, dy);
        CHECK(y.value().contiguous());
        CHECK_CLOSE(y.value(), reference(wide.narrow(-1, start, width), s), tol_of(DType::f32));
        CHECK_CLOSE(x.grad().narrow(-1, start, width), reference(dy, s), tol_of(DType::f32));
      }
}

TEST_CASE("scale_by: infinities and NaN" * doctest::test_suite("cuda")) {
  const double inf = std::numeric_limits<double>::infinity();
  for_dtypes([=](Device device, DType dtype) {
    const Tensor x = Tensor::from<double>({inf, -inf, std::nan(""), 2}, {1, 4}).to(dtype).to(device);
    const auto y = run(x, x, number(-2, dtype, device)).y.to_vector();
    CHECK(y[0] == -inf);
    CHECK(y[1] == inf);
    CHECK(std::isnan(y[2]));
    CHECK(y[3] == -4);
    for (const double v : run(x, x, number(std::nan(""), dtype, device)).y.to_vector()) CHECK(std::isnan(v));
  });
}

TEST_CASE("scale_by: bits do not depend on the number of threads") {
  const Tensor x = random_tensor({37, 5003}, DType::bf16, 1), s = number(0.7, DType::bf16, Device::cpu);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Outcome one = run(x, x, s);
  omp_set_num_threads(3);
  const Outcome three = run(x, x, s);
  omp_set_num_threads(before);
  CHECK_BITS(one.y, three.y);
  CHECK_BITS(one.dx, three.dx);
}

TEST_CASE("scale_by: errors") {
  Context ctx;
  const Tensor x = Tensor::zeros({2, 4}, DType::f32, Device::cpu), s = number(1, DType::f32, Device::cpu);
  const auto fault = [&](const Tensor& of_x, const Tensor& of_s) {
    return message_of([&] { scale_by(ctx, of_x, of_s); });
  };
  CHECK(fault({}, s) == "scale_by: x: got no tensor");
  CHECK(fault(x, {}) == "scale_by: s: got no tensor");
  CHECK(fault(Tensor::zeros({2, 2}, DType::i32, Device::cpu), s) ==
        "scale_by: x: want f32, f64 or bf16, got i32");
  CHECK(fault(Tensor::scalar(1, DType::f32, Device::cpu), s) == "scale_by: x: want at least one dimension");
  CHECK(fault(x, x) == "scale_by: s: want one element, got shape [2, 4]");
  CHECK(fault(x, Tensor::zeros({0}, DType::f32, Device::cpu)) ==
        "scale_by: s: want one element, got shape [0]");
  CHECK(fault(x, s.to(DType::bf16)).starts_with("scale_by: s:"));
  CHECK(fault(x, s.to(DType::f64)).starts_with("scale_by: s:"));
  CHECK(fault(x, s.to(Device::guard)).starts_with("scale_by: s: want it on cpu, where x is, got "));
}
