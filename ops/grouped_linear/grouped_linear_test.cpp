#include "ops/grouped_linear/grouped_linear.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <tuple>

#include "core/host_wait.h"
#include "core/variants.h"
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

// The formulas of the contract in f64, row by row, from operands on any device.
Result reference(const Tensor& x, const Offsets& offsets, const Tensor& weight, const Tensor& dy) {
  const std::int64_t in = x.cols(), out = weight.dim(1);
  Result r{Tensor::zeros(dy.shape(), DType::f64, Device::cpu),
           Tensor::zeros(x.shape(), DType::f64, Device::cpu),
           Tensor::zeros(weight.shape(), DType::f64, Device::cpu)};
  const auto wide = [](const Tensor& t) { return t.to(Device::cpu).to(DType::f64); };
  const Tensor xd = wide(x), wd = wide(weight), dyd = wide(dy);
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

TEST_CASE("grouped_linear: f32 and bf16 against f64" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("grouped_linear"), [](Device device, DType dtype) {
    if (dtype == DType::f64) return;
    check_against_reference(device, dtype, {0, 5, 5, 17, 18, 40}, 31, 13);
    check_against_reference(device, dtype, {0, 0, 0}, 7, 5);
    check_against_reference(device, dtype, {0, 1}, 1, 1);
    // Groups and outputs are cut.
    if (device.is_cuda())
      check_against_reference(device, dtype, {0, 130, 130, 261, 262, 268}, 21, 70);
    else
      check_against_reference(device, dtype, {0, 130, 130, 400, 401, 411}, 37, 300);
    check_against_reference(device, dtype, {0, 3, 6}, 0, 4);
    check_against_reference(device, dtype, {0, 3, 6}, 4, 0);
    if (dtype == DType::f32) check_against_reference(device, dtype, {0, 600}, 9, 11);
  });
}

TEST_CASE("grouped_linear: products, of groups that the host knows, against f64" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("grouped_linear"), [](Device device, DType dtype) {
    const Offsets offsets{0, 5, 5, 17, 18, 40};
    const Tensor x = random_tensor({40, 24}, dtype, 1), dy = random_tensor({40, 16}, dtype, 2),
                 weight = random_tensor({5, 16, 24}, dtype, 3);
    const Result want = reference(x, offsets, weight, dy);
    const Tensor own_dy = dy.to(device), own_offsets = tensor_of(offsets, device),
                 on_host = tensor_of(offsets);
    KernelChoice choice;
    choice.by_op["grouped_linear"] = "products";
    const Var vx(x.to(device), std::make_shared<GradNode>(x.shape(), dtype, device, false)),
        vw = Var::leaf(weight.to(device));
    for (int pass = 1; pass <= 2; ++pass) {  // Into::set, then Into::add
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      ctx.kernels = &choice;
      reset_host_waits();
      const Var y = grouped_linear(ctx, vx, own_offsets, vw, on_host);
      tape.backward(y, own_dy);
      CHECK(host_waits().empty());
      CHECK_CLOSE(y.value(), want.y, product_tol(dtype, 24));
      CHECK_CLOSE(vx.node()->take(), want.dx, product_tol(dtype, 16));
      auto dweight = want.dweight.to_vector();
      for (double& value : dweight) value *= pass;
      CHECK_CLOSE(vw.grad(), Tensor::from(dweight, weight.shape()),
                  product_tol(accumulate_dtype(dtype), 2 * 40));
    }
    Context ctx;
    ctx.kernels = &choice;
    if (device == Device::cpu)
      CHECK_CLOSE(grouped_linear(ctx, vx, own_offsets, vw).value(), want.y, product_tol(dtype, 24));
    else
      CHECK_THROWS_WITH_AS(grouped_linear(ctx, vx, own_offsets, vw),
                           doctest::Contains("wants the rows of each expert on the host"), Error);
    CHECK_THROWS_WITH_AS(grouped_linear(ctx, vx, own_offsets, vw, tensor_of({0, 5, 4, 17, 18, 40})),
                         doctest::Contains("for group 1"), Error);
  });
}

TEST_CASE("grouped_linear: wide tiles on tensor cores, against f64" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  // Results of many columns, of which the last tile has 72, and of few; whole tiles and slabs, and others.
  for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{200, 1096}, {1096, 200}}) {
    CAPTURE(in);
    const Offsets offsets{0, 130, 130, 390};
    const Tensor x = random_tensor({390, in}, DType::bf16, 1), dy = random_tensor({390, out}, DType::bf16, 2),
                 weight = random_tensor({3, out, in}, DType::bf16, 3);
    const Result want = reference(x, offsets, weight, dy);
    const Tensor own_offsets = tensor_of(offsets, Device::cuda), own_x = x.to(Device::cuda),
                 own_dy = dy.to(Device::cuda), own_weight = weight.to(Device::cuda);
    const Tensor dx = Tensor::zeros(x.shape(), DType::bf16, Device::cuda),
                 dweight = Tensor::zeros(weight.shape(), DType::f32, Device::cuda);
    CHECK_CLOSE(grouped_linear_forward(own_x, own_offsets, own_weight), want.y, product_tol(DType::bf16, in));
    grouped_linear_backward_input({dx, Into::add}, own_dy, own_offsets, own_weight);
    CHECK_CLOSE(dx, want.dx, product_tol(DType::bf16, out));
    grouped_linear_backward_weight({dweight, Into::add}, own_dy, own_offsets, own_x);
    CHECK_CLOSE(dweight, want.dweight, product_tol(DType::f32, 390));
  }
}

TEST_CASE("grouped_linear: rows of any alignment, and results into windows" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("grouped_linear"), [](Device device, DType dtype) {
    const Offsets offsets{0, 3, 3, 20, 21};
    const Tensor own_offsets = tensor_of(offsets, device);
    for (const auto& [start, in, out] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{0, 32, 24},
                                         {8, 40, 72},
                                         {4, 20, 12},
                                         {1, 32, 24}}) {
      CAPTURE(start);
      CAPTURE(in);
      CAPTURE(out);
      const auto window = [&](std::int64_t cols, std::uint64_t seed) {
        return random_tensor({21, 96}, dtype, seed).to(device).narrow(-1, start, cols);
      };
      const Tensor x = window(in, 1), dy = window(out, 2), dx = window(in, 3), old_dx = dx.clone();
      const Tensor weight = random_tensor({4, out, in}, dtype, 4).to(device);
      const Tensor wide_dweight = random_tensor({4 * out, 96}, accumulate_dtype(dtype), 5).to(device);
      const Tensor dweight = wide_dweight.narrow(-1, start, in).reshape({4, out, in}),
                   old_dweight = dweight.clone();
      const Result want = reference(x, offsets, weight, dy);
      const auto sum_of = [](const Tensor& a, const Tensor& b) {
        auto sum = a.to_vector();
        const auto other = b.to_vector();
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
        return Tensor::from(sum, a.shape());
      };
      CHECK_CLOSE(grouped_linear_forward(x, own_offsets, weight), want.y, product_tol(dtype, in));
      grouped_linear_backward_input({dx, Into::add}, dy, own_offsets, weight);
      CHECK_CLOSE(dx, sum_of(want.dx, old_dx), product_tol(dtype, out));
      grouped_linear_backward_weight({dweight, Into::add}, dy, own_offsets, x);
      CHECK_CLOSE(dweight, sum_of(want.dweight, old_dweight), product_tol(accumulate_dtype(dtype), 21));
      const Tensor again = old_dweight.clone();
      grouped_linear_backward_weight({again, Into::add}, dy, own_offsets, x);
      if (device.is_cuda()) CHECK_BITS(again, dweight);
    }
  });
}

TEST_CASE("grouped_linear: gradients in the other dtypes that there are" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("grouped_linear")) {
    const Offsets offsets{0, 5, 9};
    const Tensor x = random_tensor({9, 16}, DType::bf16, 1), dy = random_tensor({9, 8}, DType::bf16, 2),
                 weight = random_tensor({2, 8, 16}, DType::bf16, 3);
    const Result want = reference(x, offsets, weight, dy);
    const Tensor dx = Tensor::empty({9, 16}, DType::f32, device),
                 dweight = Tensor::empty({2, 8, 16}, DType::bf16, device);
    grouped_linear_backward_input({dx, Into::set}, dy.to(device), tensor_of(offsets, device),
                                  weight.to(device));
    grouped_linear_backward_weight({dweight, Into::set}, dy.to(device), tensor_of(offsets, device),
                                   x.to(device));
    CHECK_CLOSE(dx, want.dx, product_tol(DType::f32, 8));
    CHECK_CLOSE(dweight, want.dweight, product_tol(DType::bf16, 9));
  }
}

TEST_CASE("grouped_linear: more groups than a block has threads, most of them empty" *
          doctest::test_suite("cuda")) {
  Offsets offsets{0};
  for (std::int64_t e = 0; e < 700; ++e)
    offsets.push_back(offsets.back() + (e % 131 == 129 ? 1 + e / 40 : 0));
  for_dtypes(test_devices("grouped_linear"), [&](Device device, DType dtype) {
    if (dtype != DType::f64) check_against_reference(device, dtype, offsets, 8, 8);
  });
}

TEST_CASE("grouped_linear: rows beyond the last group are left alone on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Offsets& offsets : {Offsets{0, 2, 140}, Offsets{0, 0, 0}}) {
      const std::int64_t rows = 300, used = offsets.back();
      const Tensor x = random_tensor({rows, 16}, dtype, 1).to(Device::cuda),
                   dy = random_tensor({rows, 8}, dtype, 2).to(Device::cuda),
                   weight = random_tensor({2, 8, 16}, dtype, 3).to(Device::cuda);
      const auto first = [used](const Tensor& t) { return t.narrow(0, 0, used); };
      const Result want = reference(first(x), offsets, weight, first(dy));
      const Tensor own_offsets = tensor_of(offsets, Device::cuda);
      CHECK_CLOSE(first(grouped_linear_forward(x, own_offsets, weight)), want.y, product_tol(dtype, 16));
      const Tensor dx = random_tensor({rows, 16}, dtype, 4).to(Device::cuda), old_dx = dx.clone();
      grouped_linear_backward_input({dx, Into::set}, dy, own_offsets, weight);
      CHECK_CLOSE(first(dx), want.dx, product_tol(dtype, 8));
      CHECK_BITS(dx.narrow(0, used, rows - used), old_dx.narrow(0, used, rows - used));
      const Tensor dweight = Tensor::empty({2, 8, 16}, DType::f32, Device::cuda);
      grouped_linear_backward_weight({dweight, Into::set}, dy, own_offsets, x);
      CHECK_CLOSE(dweight, want.dweight, product_tol(DType::f32, used));
    }
}

TEST_CASE("grouped_linear: rows more than 2^31 elements apart on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  // Rows are copied one by one, because the software GPU looks at all memory of a copy of several.
  const auto far = [](const Tensor& t) {
    const Tensor to = Tensor::empty({t.rows(), (std::int64_t{1} << 31) + 16}, t.dtype(), Device::cuda)
                          .narrow(-1, 0, t.cols());
    for (std::int64_t r = 0; r < t.rows(); ++r) to.narrow(0, r, 1).copy_from(t.narrow(0, r, 1));
    return to;
  };
  const Offsets offsets{0, 1, 2};
  const Tensor own_offsets = tensor_of(offsets, Device::cuda);
  for (const std::int64_t cols : {8, 5}) {  // aligned, and not
    const Tensor x = random_tensor({2, cols}, DType::bf16, 1), dy = random_tensor({2, 8}, DType::bf16, 2),
                 weight = random_tensor({2, 8, cols}, DType::bf16, 3);
    const Result want = reference(x, offsets, weight, dy);
    CHECK_CLOSE(grouped_linear_forward(far(x), own_offsets, weight.to(Device::cuda)), want.y,
                product_tol(DType::bf16, cols));
    const Tensor dx = far(x);
    grouped_linear_backward_input({dx, Into::set}, far(dy), own_offsets, weight.to(Device::cuda));
    for (const std::int64_t row : {0, 1})
      CHECK_CLOSE(dx.narrow(0, row, 1), want.dx.narrow(0, row, 1), product_tol(DType::bf16, 8));
    const Tensor dweight = Tensor::empty(weight.shape(), DType::f32, Device::cuda);
    grouped_linear_backward_weight({dweight, Into::set}, far(dy), own_offsets, far(x));
    CHECK_CLOSE(dweight, want.dweight, product_tol(DType::f32, 2));
  }
}

TEST_CASE("grouped_linear: groups without rows get a zero gradient, others keep what they had" *
          doctest::test_suite("cuda")) {
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

TEST_CASE("grouped_linear: products run side by side count once in time and all in operations" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("grouped_linear")) {
    const Tensor x = random_tensor({64, 8}, DType::f32, 1).to(device),
                 weight = random_tensor({16, 4, 8}, DType::f32, 2).to(device);
    Offsets offsets;
    for (std::int64_t e = 0; e <= 16; ++e) offsets.push_back(4 * e);
    reset_matmul_flops();
    const std::int64_t calls = matmul_zone().calls();
    const Tensor y = grouped_linear_forward(x, tensor_of(offsets, device), weight);
    CHECK(matmul_flops() == 2 * 64 * 8 * 4);
    CHECK(matmul_zone().calls() == calls + 1);
    for (int again = 0; again < 3; ++again)
      CHECK_BITS(grouped_linear_forward(x, tensor_of(offsets, device), weight), y);
  }
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
