#include "ops/scale_columns/scale_columns.h"

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

using Factors = std::vector<ColumnFactor>;

/// Five parts like those of Mamba's projection, one of them without columns, that add up to `columns`.
Factors parts(std::int64_t columns) {
  const std::int64_t a = columns / 3, b = columns / 7;
  return {{a, 0.5}, {b, -1.75}, {0, 9}, {b, 1}, {columns - a - 2 * b, 0.3}};
}

struct Outcome {
  Tensor y, dx;
};

Outcome run(const Tensor& x, const Tensor& dy, const Factors& factors) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var in(x, std::make_shared<GradNode>(x.shape(), x.dtype(), x.device(), false));
  const Var y = scale_columns(ctx, in, factors);
  tape.backward(y, dy);
  return {y.value(), in.node()->grad()};
}

/// The factor of each column is found anew; in f64.
Tensor reference(const Tensor& x, const Factors& factors) {
  auto values = x.to_vector();
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto column = static_cast<std::int64_t>(i) % x.cols();
    for (const ColumnFactor& part : factors) {
      if (column >= 0 && column < part.columns) values[i] *= part.factor;
      column -= part.columns;
    }
  }
  return Tensor::from(values, x.shape());
}

/// Of a factor that is rounded to the dtype of the arithmetic, a product and a result.
Tol tol_of(DType dtype) {
  return {dtype == DType::f64 ? 0x1p-52 : dtype == DType::f32 ? 0x1p-23 : 0x1p-8 + 0x1p-22, 0};
}

}  // namespace

TEST_CASE("scale_columns: against the formula" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const std::int64_t rows : {0, 1, 5})
      for (const std::int64_t cols : {1, 7, 16, 33, 100, 4097}) {
        CAPTURE(rows);
        CAPTURE(cols);
        const Tensor x = random_tensor({rows, cols}, dtype, 1).to(device),
                     dy = random_tensor({rows, cols}, dtype, 2).to(device);
        for (const Factors& factors : {parts(cols), Factors{{cols, -0.7}}, Factors{{cols - 1, 1}, {1, 3}}}) {
          const Outcome got = run(x, dy, factors);
          CHECK_CLOSE(got.y, reference(x, factors), tol_of(dtype));
          CHECK_CLOSE(got.dx, reference(dy, factors), tol_of(dtype));
          CHECK(got.y.dtype() == dtype);
        }
      }
  });
}

TEST_CASE("scale_columns: eight parts of one column each, more dimensions" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    Factors factors;
    for (int i = 0; i < 8; ++i) factors.push_back({1, std::ldexp(1.0, i - 3)});
    const Tensor x = random_tensor({2, 3, 8}, dtype, 1).to(device);
    CHECK_CLOSE(run(x, x, factors).y, reference(x, factors), (Tol{0, 0}));  // powers of two: exact
  });
}

TEST_CASE("scale: one factor of all; a factor of 1 returns the value itself") {
  const Tensor x = random_tensor({3, 5}, DType::f64, 1);
  Context ctx;
  CHECK_BITS(scale(ctx, x, 0.5).value(), reference(x, {{5, 0.5}}));
  Tape tape;
  ctx.tape = &tape;
  const Var leaf = Var::leaf(x);
  CHECK(scale(ctx, leaf, 1).value().address() == x.address());
  CHECK(scale_columns(ctx, leaf, Factors{{2, 1}, {3, 1}}).node() == leaf.node());
  CHECK(tape.size() == 0);
}

TEST_CASE("scale_columns: bf16 is rounded once" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor x = random_tensor({11, 13}, DType::bf16, 1).to(device);
    const auto y = run(x, x, {{13, 0.3}}).y.to_vector(), in = x.to_vector();
    for (std::size_t i = 0; i < y.size(); ++i)
      CHECK(y[i] == static_cast<double>(bf16(static_cast<float>(in[i]) * 0.3f)));
  }
}

TEST_CASE("scale_columns: takes the place of a value that was given away, of no other" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Factors factors = parts(33);
    const Tensor x = random_tensor({7, 33}, DType::f32, 1).to(device),
                 dy = random_tensor({7, 33}, DType::f32, 2).to(device), kept = dy.clone();
    const Outcome want = run(x, dy, factors);
    CHECK_BITS(dy, kept);  // somebody else holds it
    const auto node = [&x] { return std::make_shared<GradNode>(x.shape(), x.dtype(), x.device(), false); };
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    Tensor own = x.clone();
    const void* place = own.address();
    const auto in = node();
    Var given(std::move(own), in);
    own = {};
    const Var y = scale_columns(ctx, std::move(given), factors);
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
    CHECK(scale_columns(ctx, Var(shared, node()), factors).value().address() != shared.address());
    CHECK_BITS(shared, x);
    Var leaf = Var::leaf(x.clone());
    const void* weights = leaf.value().address();
    CHECK(scale_columns(ctx, std::move(leaf), factors).value().address() != weights);
  }
}

TEST_CASE("scale_columns: against finite differences, with a parameter too") {
  const auto fn = [](Context& ctx, const std::vector<Var>& x) {
    const Var y = scale_columns(ctx, x[0], parts(9));
    return std::vector<Var>{scale(ctx, y, -3), y};
  };
  CHECK_GRADIENTS(fn, {random_tensor({4, 9}, DType::f64, 3)});
}

TEST_CASE("scale_columns: strided rows, gradients into windows" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (const std::int64_t start : {1, 4, 8})
      for (const std::int64_t width : {3, 8, 19, 24}) {
        CAPTURE(start);
        CAPTURE(width);
        const std::vector<std::int64_t> widths{start, width, 40 - start - width};
        const Tensor wide = random_tensor({9, 40}, DType::f32, 1).to(device),
                     dy = random_tensor({9, 40}, DType::f32, 2).to(device).narrow(-1, start, width);
        for (const Factors& factors : {parts(width), Factors{{width, 0.7}}}) {
          Tape tape;
          Context ctx;
          ctx.tape = &tape;
          const Var x = Var::leaf(wide);
          const Var y = scale_columns(ctx, split_last(ctx, x, widths)[1], factors);
          tape.backward(y, dy);
          CHECK(y.value().contiguous());
          CHECK_CLOSE(y.value(), reference(wide.narrow(-1, start, width), factors), tol_of(DType::f32));
          CHECK_CLOSE(x.grad().narrow(-1, start, width), reference(dy, factors), tol_of(DType::f32));
        }
      }
}

TEST_CASE("scale_columns: infinities and NaN" * doctest::test_suite("cuda")) {
  const double inf = std::numeric_limits<double>::infinity();
  for_dtypes([=](Device device, DType dtype) {
    const Tensor x = Tensor::from<double>({inf, -inf, std::nan(""), 2}, {1, 4}).to(dtype).to(device);
    const auto y = run(x, x, {{1, 2}, {1, -3}, {2, 0}}).y.to_vector();
    CHECK(y[0] == inf);
    CHECK(y[1] == inf);
    CHECK(std::isnan(y[2]));
    CHECK(y[3] == 0);
  });
}

TEST_CASE("scale_columns: bits do not depend on the number of threads") {
  const Tensor x = random_tensor({37, 5003}, DType::bf16, 1);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Outcome one = run(x, x, parts(5003));
  omp_set_num_threads(3);
  const Outcome three = run(x, x, parts(5003));
  omp_set_num_threads(before);
  CHECK_BITS(one.y, three.y);
  CHECK_BITS(one.dx, three.dx);
}

TEST_CASE("scale_columns: errors") {
  Context ctx;
  const Tensor x = Tensor::zeros({2, 4}, DType::f32, Device::cpu);
  const auto fault = [&](const Tensor& t, const Factors& factors) {
    return message_of([&] { scale_columns(ctx, t, factors); });
  };
  CHECK(fault(Tensor(), {}) == "scale_columns: x: got no tensor");
  CHECK(
      fault(Tensor::zeros({2, 2}, DType::i32, Device::cpu), {{2, 1}}).starts_with("scale_columns: x: want"));
  CHECK(fault(x, {{3, 2}}) == "scale_columns: factors of 3 columns for x of 4");
  CHECK(fault(x, {{4, HUGE_VAL}}) == "scale_columns: want finite factors, got inf");
  CHECK(fault(x, {{5, 2}, {-1, 2}}).starts_with("scale_columns: want parts of at least 0 columns"));
  CHECK(fault(x, Factors(9, {1, 2})) == "scale_columns: want at most 8 factors, got 9");
}
