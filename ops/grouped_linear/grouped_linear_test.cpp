#include "ops/grouped_linear/grouped_linear.h"

#include <doctest/doctest.h>
#include <omp.h>

#include "core/host_wait.h"
#include "ops/matmul/matmul.h"
#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Offsets = std::vector<std::int64_t>;

Tensor tensor_of(const Offsets& offsets, Device device = Device::cpu) {
  return Tensor::from(offsets, {std::ssize(offsets)}).to(device);
}

DiffFn with_offsets(const Offsets& offsets) {
  return [offsets](Context& ctx, const std::vector<Var>& v) {
    return std::vector<Var>{grouped_linear(ctx, v[0], tensor_of(offsets), v[1])};
  };
}

Tensor f64(const Shape& shape, std::uint64_t seed) { return random_tensor(shape, DType::f64, seed); }

struct Result {
  Tensor y, dx, dweight;
};

// The formulas of the contract in f64, row by row.
Result reference(const Tensor& x, const Offsets& offsets, const Tensor& weight, const Tensor& dy) {
  const std::int64_t in = x.cols(), out = weight.dim(1);
  Result r{Tensor::zeros(dy.shape(), DType::f64, Device::cpu),
           Tensor::zeros(x.shape(), DType::f64, Device::cpu),
           Tensor::zeros(weight.shape(), DType::f64, Device::cpu)};
  const Tensor xd = x.to(DType::f64), wd = weight.to(DType::f64), dyd = dy.to(DType::f64);
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e)
    for (std::int64_t t = offsets[e]; t < offsets[e + 1]; ++t)
      for (std::int64_t o = 0; o < out; ++o) {
        const std::int64_t row = static_cast<std::int64_t>(e) * out + o;
        const double g = dyd.row<double>(t)[o];
        for (std::int64_t i = 0; i < in; ++i) {
          r.y.row<double>(t)[o] += xd.row<double>(t)[i] * wd.row<double>(row)[i];
          r.dx.row<double>(t)[i] += g * wd.row<double>(row)[i];
          r.dweight.row<double>(row)[i] += g * xd.row<double>(t)[i];
        }
      }
  return r;
}

Tol product_tol(DType stored, std::int64_t terms) {
  const double store = stored == DType::bf16 ? 0x1p-8 : 0x1p-24;
  return {2 * store, 4 * 0x1p-24 * static_cast<double>(terms + 1)};
}

void check_against_reference(Device device, DType dtype, const Offsets& offsets, std::int64_t in,
                             std::int64_t out) {
  CAPTURE(in);
  CAPTURE(out);
  const std::int64_t rows = offsets.back(), groups = static_cast<std::int64_t>(offsets.size()) - 1;
  const Tensor x = random_tensor({rows, in + 3}, dtype, 1).narrow(-1, 1, in);
  const Tensor weight = random_tensor({groups, out, in}, dtype, 2);
  const Tensor dy = random_tensor({rows, out}, dtype, 3);
  const Result want = reference(x, offsets, weight, dy);
  const Tensor own_offsets = tensor_of(offsets, device), own_dy = dy.to(device);
  const Tensor own_x = random_tensor({rows, in + 3}, dtype, 1).to(device).narrow(-1, 1, in);
  const Var vx(own_x, std::make_shared<GradNode>(x.shape(), dtype, device, false)),
      vw = Var::leaf(weight.to(device));
  for (int pass = 1; pass <= 2; ++pass) {  // Into::set, then Into::add
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    reset_host_waits();
    const Var y = grouped_linear(ctx, vx, own_offsets, vw);
    tape.backward(y, own_dy);
    CHECK(host_waits().empty());
    CHECK_CLOSE(y.value(), want.y, product_tol(dtype, in));
    CHECK_CLOSE(vx.node()->take(), want.dx, product_tol(dtype, out));
    auto dweight = want.dweight.to_vector();
    for (double& value : dweight) value *= pass;
    CHECK_CLOSE(vw.grad(), Tensor::from(dweight, weight.shape()), product_tol(DType::f32, 2 * rows));
  }
}

}  // namespace

TEST_CASE("grouped_linear: against finite differences") {
  CHECK_GRADIENTS(with_offsets({0, 2, 2, 5, 6}), {f64({6, 3}, 1), f64({4, 2, 3}, 2)});
  CHECK_GRADIENTS(with_offsets({0, 0, 4}), {f64({4, 5}, 1).narrow(-1, 1, 3), f64({2, 2, 3}, 2)});
  for (const int wanted : {1, 2}) {
    GradCheckOptions options;
    options.wants = {wanted == 1, wanted == 2};
    CHECK_GRADIENTS(with_offsets({0, 1, 3}), {f64({3, 2}, 1), f64({2, 3, 2}, 2)}, options);
  }
}

TEST_CASE("grouped_linear: a weight that is computed") {
  const DiffFn fn = [](Context& ctx, const std::vector<Var>& v) {
    const Var weight = reshape(ctx, grouped_linear(ctx, v[1], tensor_of({0, 3}), v[2]), {1, 3, 2});
    return std::vector<Var>{grouped_linear(ctx, v[0], tensor_of({0, 4}), weight)};
  };
  CHECK_GRADIENTS(fn, {f64({4, 2}, 1), f64({3, 5}, 2), f64({1, 2, 5}, 3)});
}

TEST_CASE("grouped_linear: f32 and bf16 against f64") {
  for_dtypes(test_devices("grouped_linear"), [](Device device, DType dtype) {
    if (dtype == DType::f64) return;
    check_against_reference(device, dtype, {0, 5, 5, 17, 18, 40}, 31, 13);
    check_against_reference(device, dtype, {0, 0, 0}, 7, 5);
    check_against_reference(device, dtype, {0, 1}, 1, 1);
    // Groups and outputs are cut.
    check_against_reference(device, dtype, {0, 130, 130, 400, 401, 411}, 37, 300);
    check_against_reference(device, dtype, {0, 3, 6}, 0, 4);
    check_against_reference(device, dtype, {0, 3, 6}, 4, 0);
    if (dtype == DType::f32) check_against_reference(device, dtype, {0, 600}, 9, 11);
  });
}

TEST_CASE("grouped_linear: groups without rows get a zero gradient, others keep what they had") {
  for (const Device device : test_devices("grouped_linear")) {
    const Var weight = Var::leaf(random_tensor({3, 2, 4}, DType::f32, 1).to(device));
    weight.node()->into().to.fill(7);
    weight.node()->clear();  // the buffer keeps its old contents
    const auto step = [&](const Offsets& offsets) {
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      const Var y = grouped_linear(ctx, random_tensor({offsets.back(), 4}, DType::f32, 2).to(device),
                                   tensor_of(offsets, device), weight);
      tape.backward(y, random_tensor({offsets.back(), 2}, DType::f32, 3).to(device));
    };
    step({0, 0, 2, 2});
    const Tensor zeros = Tensor::zeros({2, 4}, DType::f32, Device::cpu);
    CHECK_BITS(weight.grad().select(0), zeros);
    CHECK_BITS(weight.grad().select(2), zeros);
    const Tensor before = weight.grad().clone();
    step({0, 0, 0, 3});
    CHECK_BITS(weight.grad().select(0), zeros);
    CHECK_BITS(weight.grad().select(1), before.select(1));
    CHECK(relative_error(weight.grad().select(2), zeros) > 0);
  }
}

TEST_CASE("grouped_linear: products run side by side count once in time and all in operations") {
  const Tensor x = random_tensor({64, 8}, DType::f32, 1), weight = random_tensor({16, 4, 8}, DType::f32, 2);
  Offsets offsets;
  for (std::int64_t e = 0; e <= 16; ++e) offsets.push_back(4 * e);
  reset_matmul_flops();
  const std::int64_t calls = matmul_zone().calls();
  const Tensor y = grouped_linear_forward(x, tensor_of(offsets), weight);
  CHECK(matmul_flops() == 2 * 64 * 8 * 4);
  CHECK(matmul_zone().calls() == calls + 1);
  for (int again = 0; again < 3; ++again)
    CHECK_BITS(grouped_linear_forward(x, tensor_of(offsets), weight), y);
}

TEST_CASE("grouped_linear: errors") {
  Context ctx;
  const Tensor x = Tensor::zeros({4, 3}, DType::f32, Device::cpu),
               weight = Tensor::zeros({2, 5, 3}, DType::f32, Device::cpu);
  CHECK_NOTHROW(grouped_linear(ctx, x, tensor_of({0, 1, 4}), weight));
  CHECK_THROWS_AS(grouped_linear(ctx, x, tensor_of({0, 4}), weight), Error);
  CHECK_THROWS_AS(grouped_linear(ctx, x, tensor_of({}), weight), Error);
  CHECK_THROWS_AS(grouped_linear(ctx, x, tensor_of({1, 2, 4}), weight), Error);
  CHECK_THROWS_AS(grouped_linear(ctx, x, Tensor::from<std::int32_t>({0, 1, 4}, {3}), weight), Error);
  CHECK_THROWS_AS(grouped_linear(ctx, x, tensor_of({0, 2, 3}), weight), Error);
  CHECK_THROWS_AS(grouped_linear(ctx, x, tensor_of({0, 5, 4}), weight), Error);
  CHECK_THROWS_AS(grouped_linear(ctx, x.reshape({2, 2, 3}), tensor_of({0, 1, 4}), weight), Error);
  CHECK_THROWS_AS(
      grouped_linear(ctx, x, tensor_of({0, 1, 4}), Tensor::zeros({2, 5, 4}, DType::f32, Device::cpu)), Error);
  CHECK_THROWS_AS(
      grouped_linear(ctx, x, tensor_of({0, 1, 4}), Tensor::zeros({10, 3}, DType::f32, Device::cpu)), Error);
  CHECK_THROWS_AS(
      grouped_linear(ctx, x, tensor_of({0, 1, 4}), Tensor::zeros({2, 5, 3}, DType::f64, Device::cpu)), Error);
}
