#include "ops/gated_rmsnorm/gated_rmsnorm.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <array>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/far_rows.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Tensor reference(const Tensor& y, const Tensor& z, const Tensor& weight, std::int64_t groups, double eps) {
  const auto vy = y.to_vector(), vz = z.to_vector(), w = weight.to_vector();
  const std::int64_t width = y.cols() / groups;
  Tensor out = Tensor::empty(y.shape(), DType::f64, Device::cpu);
  for (std::int64_t t = 0; t < y.rows(); ++t)
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t c0 = group * width;
      const auto gated = [&](std::int64_t c) {
        const auto i = static_cast<std::size_t>(t * y.cols() + c);
        return vy[i] * vz[i] / (1 + std::exp(-vz[i]));
      };
      double sum = 0;
      for (std::int64_t c = c0; c < c0 + width; ++c) sum += gated(c) * gated(c);
      for (std::int64_t c = c0; c < c0 + width; ++c)
        out.row<double>(t)[c] =
            w[static_cast<std::size_t>(c)] * gated(c) / std::sqrt(sum / static_cast<double>(width) + eps);
    }
  return out;
}

struct Case {
  Tensor y, z, weight;
  std::int64_t groups;
};

/// y and z are windows of wider rows, which start at a multiple of 16 bytes or not.
Case make_case(std::int64_t tokens, std::int64_t channels, std::int64_t groups, DType dtype,
               Device device = Device::cpu, bool aligned = false) {
  const std::int64_t before = aligned ? 8 : 1, after = aligned ? 8 - channels % 8 : 1;
  const auto window = [&](std::uint64_t seed, double scale, std::int64_t start) {
    return random_tensor({tokens, start + channels + after}, dtype, seed, scale)
        .to(device)
        .narrow(-1, start, channels);
  };
  return {window(1, 1.0, before), window(2, 2.0, 4 * before), random_tensor({channels}, dtype, 3).to(device),
          groups};
}

/// out, and the gradients of y, z and weight for a random dout.
std::vector<Tensor> run(const Case& c) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var y = Var::leaf(c.y), z = Var::leaf(c.z), weight = Var::leaf(c.weight);
  const Var out = gated_rmsnorm(ctx, y, z, weight, c.groups, 1e-5);
  tape.backward(out, random_tensor(out.shape(), c.y.dtype(), 4).to(c.y.device()));
  return {out.value(), y.grad(), z.grad(), weight.grad()};
}

Case on(const Case& c, Device device) {
  return {c.y.to(device), c.z.to(device), c.weight.to(device), c.groups};
}
Case contiguous(const Case& c) { return {c.y.clone(), c.z.clone(), c.weight, c.groups}; }
Case as_f64(const Case& any) {
  const Case c = on(any, Device::cpu);
  return {c.y.to(DType::f64), c.z.to(DType::f64), c.weight.to(DType::f64), c.groups};
}

}  // namespace

TEST_CASE("gated_rmsnorm: against the formula" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("gated_rmsnorm"), [](Device device, DType dtype) {
    for (const bool aligned : {false, true})
      for (const std::int64_t groups : {1, 3})
        for (const std::int64_t width : {1, 16, 37, 300}) {
          CAPTURE(groups);
          CAPTURE(width);
          const Case c = make_case(11, groups * width, groups, dtype, device, aligned);
          Context ctx;
          const Var out = gated_rmsnorm(ctx, c.y, c.z, c.weight, groups, 1e-5);
          Tol tol = sum_tol(dtype, width, 4);
          tol.rel += dtype == DType::f64 ? 1e-14 : 1e-6;  // silu and the root in the accumulation dtype
          CHECK_CLOSE(out.value(), reference(c.y, c.z, c.weight, groups, 1e-5), tol);
        }
  });
}

TEST_CASE("gated_rmsnorm: eps decides where the gated value vanishes" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_rmsnorm")) {
    CAPTURE(device);
    const Tensor y = Tensor::zeros({2, 4}, DType::f32, device),
                 z = random_tensor({2, 4}, DType::f32, 1).to(device);
    Context ctx;
    const Var out = gated_rmsnorm(ctx, y, z, random_tensor({4}, DType::f32, 2).to(device), 2, 1e-5);
    CHECK_CLOSE(out.value(), Tensor::zeros({2, 4}, DType::f32, Device::cpu), (Tol{0, 0}));
    const DType dtype = device.is_cuda() ? DType::f32 : DType::f64;
    const Tensor small = random_tensor({3, 6}, dtype, 3, 1e-4).to(device),
                 weight = random_tensor({6}, dtype, 4).to(device),
                 gate = random_tensor({3, 6}, dtype, 5).to(device);
    const Var tiny = gated_rmsnorm(ctx, small, gate, weight, 3, 0.05);
    CHECK_CLOSE(tiny.value(), reference(small, gate, weight, 3, 0.05),
                (Tol{dtype == DType::f32 ? 0x1p-20 : 1e-12, 0}));
  }
}

TEST_CASE("gated_rmsnorm: a NaN stays in its group" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_rmsnorm")) {
    CAPTURE(device);
    const Case c = make_case(2, 12, 3, DType::f32, device);
    c.z.narrow(0, 1, 1).narrow(-1, 5, 1).fill(std::nan(""));
    const auto got = run(c);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto values = got[i].to_vector();
      for (std::size_t e = 0; e < values.size(); ++e) CHECK(std::isnan(values[e]) == (e >= 16 && e < 20));
    }
  }
}

TEST_CASE("gated_rmsnorm: against finite differences") {
  for (const std::int64_t groups : {1, 2, 5}) {
    CAPTURE(groups);
    const Case c = make_case(4, 10, groups, DType::f64);
    const auto fn = [&](Context& ctx, const std::vector<Var>& in) {
      return std::vector<Var>{gated_rmsnorm(ctx, in[0], in[1], in[2], groups, 1e-3)};
    };
    CHECK_GRADIENTS(fn, {c.y.clone(), c.z.clone(), c.weight});
    for (std::size_t only = 0; only < 3; ++only) {
      std::vector<bool> wants(3, false);
      wants[only] = true;
      CHECK_GRADIENTS(fn, {c.y.clone(), c.z.clone(), c.weight}, {.wants = wants});
    }
  }
}

TEST_CASE("gated_rmsnorm: gradients in f32 and bf16 against f64, across segments" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_rmsnorm"))
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool aligned : {false, true}) {
        CAPTURE(device);
        CAPTURE(dtype);
        CAPTURE(aligned);
        const Case c = make_case(150, 96, 3, dtype, device, aligned);
        const auto got = run(c), want = run(as_f64(c));
        // The f64 run draws an unrounded dout: each term carries a few roundings of the dtype. Weights, gates
        // and dout of a normal draw multiply to at most about 30.
        const double unit = dtype == DType::bf16 ? 0x1p-8 : 0x1p-24;
        for (const std::size_t i : {1, 2}) CHECK_CLOSE(got[i], want[i], (Tol{8 * unit, 30 * unit}));
        CHECK_CLOSE(got[3], want[3], (Tol{8 * unit, 30 * unit * std::sqrt(150.0)}));
        CHECK(got[3].dtype() == DType::f32);
      }
}

TEST_CASE("gated_rmsnorm: groups of every block size, and wider than its registers, on cuda" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [tokens, groups, width, aligned] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t, bool>{67, 2, 520, true},
          {67, 1, 512, true},
          {5, 2, 1500, false},
          {3, 2, 3000, true},
          {3, 1, 9001, false},
          {5, 1, 9000, true},
          {2, 2, 17008, true}}) {
      CAPTURE(dtype);
      CAPTURE(tokens);
      CAPTURE(width);
      const Case c = make_case(tokens, groups * width, groups, dtype, Device::cuda, aligned);
      const auto got = run(c), again = run(c), want = run(on(c, Device::cpu)), copy = run(contiguous(c));
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(i);
        // Factors of a normal draw multiply to at most about 30.
        const Tol tol = sum_tol(i == 3 ? DType::f32 : dtype, width + tokens, 30);
        CHECK_CLOSE(got[i], want[i], tol);
        CHECK_BITS(again[i], got[i]);
        CHECK_BITS(copy[i], got[i]);
      }
    }
}

TEST_CASE("gated_rmsnorm: an f32 weight beside bf16 activations" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_rmsnorm"))
    for (const bool aligned : {false, true}) {
      CAPTURE(device);
      Case c = make_case(9, 32, 2, DType::bf16, device, aligned);
      const auto plain = run(c);
      c.weight = c.weight.to(DType::f32);
      const auto mixed = run(c);
      for (std::size_t i = 0; i < mixed.size(); ++i) CHECK_BITS(mixed[i], plain[i]);
    }
}

TEST_CASE("gated_rmsnorm: strided gradient buffers" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_rmsnorm"))
    for (const std::int64_t start : {1, 4}) {
      CAPTURE(device);
      CAPTURE(start);
      const Case c = make_case(13, 12, 3, DType::f32, device, start == 4);
      const auto alone = run(c);
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      auto parent = std::make_shared<GradNode>(Shape{13, 40}, DType::f32, device, false);
      const Var y(c.y, std::make_shared<GradNode>(parent, c.y.shape(), start));
      const Var z(c.z, std::make_shared<GradNode>(parent, c.z.shape(), 20));
      const Var out = gated_rmsnorm(ctx, y, z, c.weight, 3, 1e-5);
      tape.backward(out, random_tensor(out.shape(), DType::f32, 4).to(device));
      CHECK(y.node()->grad().row_stride() == 40);
      CHECK_BITS(y.node()->grad(), alone[1]);
      CHECK_BITS(z.node()->grad(), alone[2]);
    }
}

TEST_CASE("gated_rmsnorm: rows behind 2^31 elements, on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Case near = on(make_case(3, 32, 2, DType::bf16), Device::cuda);
  const auto far = [](const Tensor& x) { return far_rows(x.to(Device::cpu), Device::cuda); };
  const auto got = run({far(near.y), far(near.z), near.weight, 2}), want = run(near);
  for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i], want[i]);
}

TEST_CASE("gated_rmsnorm: the number of threads changes no bit") {
  const Case c = make_case(300, 128, 4, DType::f32);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto one = run(c);
  omp_set_num_threads(3);
  const auto three = run(c);
  omp_set_num_threads(threads);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK_BITS(one[i], three[i]);
}

TEST_CASE("gated_rmsnorm: no tokens" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_rmsnorm")) {
    const auto got = run(make_case(0, 6, 2, DType::f32, device));
    CHECK(got[0].shape() == Shape{0, 6});
    CHECK_BITS(got[3], Tensor::zeros({6}, DType::f32, Device::cpu));
  }
}

TEST_CASE("gated_rmsnorm: errors") {
  Context ctx;
  const Case c = make_case(4, 6, 2, DType::f32);
  const auto call = [&](const Tensor& y, const Tensor& z, const Tensor& weight, std::int64_t groups) {
    gated_rmsnorm(ctx, y, z, weight, groups, 1e-5);
  };
  CHECK_NOTHROW(call(c.y, c.z, c.weight, 2));
  CHECK_THROWS_AS(call(random_tensor({6}, DType::f32, 1), c.z, c.weight, 2), Error);
  CHECK_THROWS_AS(call(Tensor::zeros({4, 6}, DType::i32, Device::cpu), c.z, c.weight, 2), Error);
  CHECK_THROWS_AS(call(c.y, c.z, c.weight, 4), Error);
  CHECK_THROWS_AS(call(c.y, c.z, c.weight, 0), Error);
  CHECK_THROWS_AS(call(Tensor::empty({4, 0}, DType::f32, Device::cpu), c.z, c.weight, 2), Error);
  CHECK_THROWS_AS(call(c.y, random_tensor({4, 5}, DType::f32, 1), c.weight, 2), Error);
  CHECK_THROWS_AS(call(c.y, c.z.to(DType::bf16), c.weight, 2), Error);
  CHECK_THROWS_AS(call(c.y, c.z, random_tensor({5}, DType::f32, 1), 2), Error);
  CHECK_THROWS_AS(call(c.y, c.z, c.weight.to(DType::bf16), 2), Error);
}

TEST_CASE("gated_rmsnorm: writes over the gradient that came in when nobody else holds it, and only then" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_rmsnorm")) {
    const Case c = make_case(9, 24, 3, DType::f32, device);
    const Tensor dout = random_tensor({9, 24}, DType::f32, 4).to(device), kept = dout.clone();
    // y and z are intermediate values. `own`: only the norm holds the gradient that comes in.
    const auto gradients = [&](bool y_wanted, bool z_wanted, bool own) {
      const auto node = [&](bool wanted) {
        return wanted ? std::make_shared<GradNode>(c.y.shape(), DType::f32, device, false) : nullptr;
      };
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      const Var y(c.y, node(y_wanted)), z(c.z, node(z_wanted)), weight = Var::leaf(c.weight);
      const Var out = gated_rmsnorm(ctx, y, z, weight, c.groups, 1e-5);
      out.node()->add(own ? dout.clone() : dout);
      const void* place = out.node()->grad().address();
      tape.backward(Var(c.y), c.y);
      if (y_wanted) CHECK((y.node()->grad().address() == place) == own);
      const auto grad = [](const Var& v) { return v.node() ? v.node()->grad() : Tensor(); };
      return std::array<Tensor, 3>{grad(y), grad(z), weight.grad()};
    };
    const auto want = gradients(true, true, false);
    CHECK_BITS(dout, kept);
    for (const bool own : {false, true})
      for (const auto& [y_wanted, z_wanted] : {std::pair{true, true}, {true, false}, {false, true}}) {
        CAPTURE(device);
        CAPTURE(own);
        CAPTURE(y_wanted);
        CAPTURE(z_wanted);
        const auto got = gradients(y_wanted, z_wanted, own);
        if (y_wanted) CHECK_BITS(got[0], want[0]);
        if (z_wanted) CHECK_BITS(got[1], want[1]);
        CHECK_BITS(got[2], want[2]);
        CHECK_BITS(dout, kept);
      }
  }
}
