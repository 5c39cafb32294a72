#include "ops/linear/linear.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/cuda/runtime.h"
#include "ops/matmul/matmul.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

struct Result {
  Tensor y, dx, dweight, dbias;
};

// The formulas of the contract in f64; x and dy as [T, .].
Result reference(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& dy) {
  const std::int64_t rows = x.rows(), in = x.cols(), out = weight.rows();
  Result r{
      Tensor::zeros(dy.shape(), DType::f64, Device::cpu), Tensor::zeros(x.shape(), DType::f64, Device::cpu),
      Tensor::zeros(weight.shape(), DType::f64, Device::cpu), Tensor::zeros({out}, DType::f64, Device::cpu)};
  const Tensor xd = x.to(DType::f64), wd = weight.to(DType::f64), dyd = dy.to(DType::f64);
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t o = 0; o < out; ++o) {
      double& y = r.y.row<double>(t)[o];
      const double g = dyd.row<double>(t)[o];
      if (bias) {
        y = bias.to(DType::f64).data<double>()[o];
        r.dbias.data<double>()[o] += g;
      }
      for (std::int64_t i = 0; i < in; ++i) {
        y += xd.row<double>(t)[i] * wd.row<double>(o)[i];
        r.dx.row<double>(t)[i] += g * wd.row<double>(o)[i];
        r.dweight.row<double>(o)[i] += g * xd.row<double>(t)[i];
      }
    }
  return r;
}

Tol product_tol(DType stored, std::int64_t terms) {
  const double store = stored == DType::bf16 ? 0x1p-8 : 0x1p-24;
  return {2 * store, 4 * 0x1p-24 * static_cast<double>(terms + 1)};
}

DiffFn as_function() {
  return [](Context& ctx, const std::vector<Var>& v) {
    return std::vector<Var>{v.size() > 2 ? linear(ctx, v[0], v[1], v[2]) : linear(ctx, v[0], v[1])};
  };
}

Tensor f64(const Shape& shape, std::uint64_t seed) { return random_tensor(shape, DType::f64, seed); }

}  // namespace

TEST_CASE("linear: against finite differences") {
  CHECK_GRADIENTS(as_function(), {f64({5, 3}, 1), f64({4, 3}, 2), f64({4}, 3)});
  CHECK_GRADIENTS(as_function(), {f64({2, 3, 5}, 1), f64({7, 5}, 2)});
  CHECK_GRADIENTS(as_function(), {f64({3}, 1), f64({2, 3}, 2), f64({2}, 3)});
  CHECK_GRADIENTS(as_function(), {f64({5, 8}, 1).narrow(-1, 2, 3), f64({4, 3}, 2)});
  GradCheckOptions options;
  for (int wanted = 1; wanted < 8; ++wanted) {
    options.wants = {(wanted & 1) != 0, (wanted & 2) != 0, (wanted & 4) != 0};
    CHECK_GRADIENTS(as_function(), {f64({3, 2}, 1), f64({4, 2}, 2), f64({4}, 3)}, options);
  }
}

TEST_CASE("linear: a weight that is computed, and one used twice") {
  const DiffFn twice = [](Context& ctx, const std::vector<Var>& v) {
    const Var weight = linear(ctx, v[1], v[2]);
    return std::vector<Var>{linear(ctx, linear(ctx, v[0], weight), weight)};
  };
  CHECK_GRADIENTS(twice, {f64({4, 3}, 1), f64({3, 2}, 2), f64({3, 2}, 3)});
  const DiffFn shared = [](Context& ctx, const std::vector<Var>& v) {
    return std::vector<Var>{linear(ctx, linear(ctx, v[0], v[1]), v[1])};
  };
  CHECK_GRADIENTS(shared, {f64({4, 3}, 1), f64({3, 3}, 2)});
}

TEST_CASE("linear: f32 and bf16 against f64" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("linear"), [](Device device, DType dtype) {
    if (dtype == DType::f64) return;
    for (const std::int64_t rows : {0, 1, 37})
      for (const std::int64_t in : {0, 1, 67})
        for (const std::int64_t out : {0, 1, 41})
          for (const bool with_bias : {false, true}) {
            CAPTURE(rows);
            CAPTURE(in);
            CAPTURE(out);
            const Tensor x = random_tensor({rows, in + 5}, dtype, 1).to(device).narrow(-1, 2, in);
            const Tensor weight = random_tensor({out, in}, dtype, 2).to(device);
            const Tensor bias = with_bias ? random_tensor({out}, dtype, 3).to(device) : Tensor();
            const Tensor dy = random_tensor({rows, out}, dtype, 4).to(device);
            const Result want = reference(x.to(Device::cpu), weight.to(Device::cpu),
                                          with_bias ? bias.to(Device::cpu) : bias, dy.to(Device::cpu));
            const Var vx(x, std::make_shared<GradNode>(x.shape(), dtype, device, false)),
                vw = Var::leaf(weight);
            const Var vb = with_bias ? Var::leaf(bias) : Var();
            for (int pass = 1; pass <= 2; ++pass) {  // Into::set, then Into::add
              Tape tape;
              Context ctx;
              ctx.tape = &tape;
              const Var y = linear(ctx, vx, vw, vb);
              tape.backward(y, dy);
              CHECK_CLOSE(y.value(), want.y, product_tol(dtype, in));
              const Tensor dx = vx.node()->take();
              CHECK(dx.dtype() == dtype);
              CHECK_CLOSE(dx, want.dx, product_tol(dtype, out));
              const auto scaled = [&](const Tensor& t) {
                auto v = t.to_vector();
                for (double& value : v) value *= pass;
                return Tensor::from(v, t.shape());
              };
              CHECK(vw.grad().dtype() == DType::f32);
              CHECK_CLOSE(vw.grad(), scaled(want.dweight), product_tol(DType::f32, 2 * rows));
              if (with_bias) CHECK_CLOSE(vb.grad(), scaled(want.dbias), product_tol(DType::f32, 2 * rows));
            }
          }
  });
}

TEST_CASE("linear: add_bias, its gradients, and a bias of whole and of partial packs" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("linear"), [](Device device, DType dtype) {
    if (dtype == DType::f64) return;
    for (const std::int64_t out : {1, 24, 43}) {
      CAPTURE(out);
      const Tensor x = random_tensor({70, out}, dtype, 1).to(device),
                   bias = random_tensor({out}, dtype, 2).to(device),
                   dy = random_tensor({70, out}, dtype, 3).to(device);
      const Var vx(x, std::make_shared<GradNode>(x.shape(), dtype, device, false)), vb = Var::leaf(bias);
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      const Var y = add_bias(ctx, vx, vb);
      tape.backward(y, dy);
      auto want = x.to_vector();
      const auto b = bias.to_vector(), g = dy.to_vector();
      std::vector<double> sums(b.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        want[i] += b[i % b.size()];
        sums[i % b.size()] += g[i];
      }
      CHECK_CLOSE(y.value(), Tensor::from(want, x.shape()), product_tol(dtype, 1));
      CHECK_BITS(vx.node()->grad(), dy);
      CHECK_CLOSE(vb.grad(), Tensor::from(sums, {out}), product_tol(DType::f32, 70));
    }
  });
}

TEST_CASE("linear: the bias is added before the rounding" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("linear")) {
    // 256 + 1 + 1: if each partial sum were rounded to bf16, the sum would stay at 256.
    const auto values = [device](const std::vector<float>& v, const Shape& shape) {
      return Tensor::from(v, shape).to(DType::bf16).to(device);
    };
    CHECK(linear_forward(values({1, 256}, {1, 2}), values({1, 1}, {1, 2}), values({1}, {1})).to_vector() ==
          std::vector<double>{258});
  }
}

TEST_CASE("linear: on cuda one product adds the bias, wherever in memory the bias begins" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t start : {0, 1}) {
      CAPTURE(dtype);
      CAPTURE(start);
      const Tensor x = random_tensor({20, 64}, dtype, 1), weight = random_tensor({48, 64}, dtype, 2);
      const Tensor bias = random_tensor({49}, dtype, 3).narrow(0, start, 48);
      const Tensor want = reference(x, weight, bias, Tensor::zeros({20, 48}, dtype, Device::cpu)).y;
      const Tensor own_x = x.to(Device::cuda), own_weight = weight.to(Device::cuda),
                   own_bias = random_tensor({49}, dtype, 3).to(Device::cuda).narrow(0, start, 48);
      const std::int64_t before = cuda::launches();
      const Tensor y = linear_forward(own_x, own_weight, own_bias);
      CHECK(cuda::launches() - before == 1);
      CHECK_CLOSE(y, want, product_tol(dtype, 64));
    }
}

TEST_CASE("linear: computes no gradient that nobody wants" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("linear")) {
    const auto random = [device](const Shape& shape, std::uint64_t seed) {
      return random_tensor(shape, DType::f32, seed).to(device);
    };
    const Var x = random({8, 4}, 1);
    const Var weight = Var::leaf(random({6, 4}, 2));
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    reset_matmul_flops();
    const Var y = linear(ctx, x, weight);
    tape.backward(y, random({8, 6}, 3));
    CHECK(matmul_flops() == 2 * 2 * 8 * 4 * 6);
    CHECK_FALSE(linear(ctx, x, weight.value()).needs_grad());
    CHECK(tape.size() == 0);
  }
}

TEST_CASE("linear: errors") {
  Context ctx;
  const auto t = [](const Shape& shape, DType dtype = DType::f32) {
    return Tensor::zeros(shape, dtype, Device::cpu);
  };
  CHECK_THROWS_AS(linear(ctx, t({}), t({4, 1})), Error);
  CHECK_THROWS_AS(linear(ctx, t({2, 3}), t({4, 2})), Error);
  CHECK_THROWS_AS(linear(ctx, t({2, 3}), t({3})), Error);
  CHECK_THROWS_AS(linear(ctx, t({2, 3}), t({4, 3}, DType::bf16)), Error);
  CHECK_THROWS_AS(linear(ctx, t({2, 3}), t({4, 3}), t({3})), Error);
  CHECK_THROWS_AS(linear(ctx, t({2, 3}), t({4, 3}), t({4}, DType::f64)), Error);
  CHECK_THROWS_AS(linear(ctx, t({2, 3}, DType::i64), t({4, 3}, DType::i64)), Error);
}
