#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <memory>
#include <tuple>

#include "ops/gated_rmsnorm/gated_rmsnorm.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/far_rows.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

// gated_rmsnorm with the norm before the gate, with a weight for each group or one for all.

namespace {

constexpr double eps = 1e-5;

struct Case {
  Tensor y, z, weight;
  std::int64_t groups;

  Case to(Device device) const { return {y.to(device), z.to(device), weight.to(device), groups}; }
  Case f64() const {
    const Case c = to(Device::cpu);
    return {c.y.to(DType::f64), c.z.to(DType::f64), c.weight.to(DType::f64), groups};
  }
};

Var norm(Context& ctx, const Case& c, const Var& y, const Var& z, const Var& weight) {
  return gated_rmsnorm(ctx, y, z, weight, c.groups, eps, {}, GateOrder::norm_first);
}

/// The formulas of the header, element by element in f64: out, dy, dz, dweight.
std::vector<Tensor> reference(const Case& c, const Tensor& dout) {
  const std::int64_t channels = c.y.cols(), width = channels / c.groups;
  const auto y = c.y.to_vector(), z = c.z.to_vector(), w = c.weight.to_vector(), up = dout.to_vector();
  std::vector<double> out(y.size()), dy(y.size()), dz(y.size()), dw(w.size(), 0);
  for (std::size_t first = 0; first < y.size(); first += static_cast<std::size_t>(width)) {
    const auto n = static_cast<std::size_t>(width);
    double squares = 0, dot = 0;
    for (std::size_t i = first; i < first + n; ++i) squares += y[i] * y[i];
    const double r = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    const auto at_weight = [&](std::size_t i) { return i % w.size(); };
    const auto logistic = [&](std::size_t i) { return 1 / (1 + std::exp(-z[i])); };
    for (std::size_t i = first; i < first + n; ++i) {
      const double gate = z[i] * logistic(i), slope = logistic(i) * (1 + z[i] * (1 - logistic(i)));
      out[i] = w[at_weight(i)] * y[i] * r * gate;
      dz[i] = up[i] * w[at_weight(i)] * y[i] * r * slope;
      dw[at_weight(i)] += up[i] * y[i] * r * gate;
      dot += w[at_weight(i)] * gate * up[i] * y[i] * r;
    }
    for (std::size_t i = first; i < first + n; ++i)
      dy[i] = r * (w[at_weight(i)] * z[i] * logistic(i) * up[i] - y[i] * r * dot / static_cast<double>(n));
  }
  return {Tensor::from(out, c.y.shape()), Tensor::from(dy, c.y.shape()), Tensor::from(dz, c.y.shape()),
          Tensor::from(dw, c.weight.shape())};
}

/// y and z are windows of wider rows, which start at a multiple of 16 bytes or not. `shared`: one weight for
/// all groups.
Case make_case(std::int64_t tokens, std::int64_t groups, std::int64_t width, bool shared, DType dtype,
               Device device = Device::cpu, bool aligned = false) {
  const std::int64_t channels = groups * width, before = aligned ? 8 : 1,
                     after = aligned ? 8 - channels % 8 : 1;
  const auto window = [&](std::uint64_t seed, double scale, std::int64_t start) {
    return random_tensor({tokens, start + channels + after}, dtype, seed, scale)
        .to(device)
        .narrow(-1, start, channels);
  };
  return {window(1, 1.0, before), window(2, 2.0, 4 * before),
          random_tensor({shared ? width : channels}, dtype, 3).to(device), groups};
}

std::vector<Tensor> run(const Case& c, const Tensor& dout) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var y = Var::leaf(c.y), z = Var::leaf(c.z), weight = Var::leaf(c.weight);
  const Var out = norm(ctx, c, y, z, weight);
  tape.backward(out, dout);
  return {out.value(), y.grad(), z.grad(), weight.grad()};
}
std::vector<Tensor> run(const Case& c) {
  return run(c, random_tensor(c.y.shape(), c.y.dtype(), 4).to(c.y.device()));
}

}  // namespace

TEST_CASE("gated_rmsnorm, norm first: values and gradients against the formulas" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("gated_rmsnorm"), [](Device device, DType dtype) {
    const bool host = !device.is_cuda();
    for (const bool aligned : {false, true})
      for (const bool shared : {false, true})
        for (const std::int64_t groups : {1, 3})
          for (const std::int64_t width : {1, 16, 37, 300})
            for (const std::int64_t tokens : {11, host ? 150 : 70}) {  // more than a segment
              CAPTURE(shared);
              CAPTURE(groups);
              CAPTURE(width);
              CAPTURE(tokens);
              const Case c = make_case(tokens, groups, width, shared, dtype, device, aligned);
              const Tensor dout = random_tensor(c.y.shape(), dtype, 4).to(device);
              const auto got = run(c, dout), want = reference(c.f64(), dout.to(Device::cpu).to(DType::f64));
              Tol tol = sum_tol(dtype, width, 8);
              tol.rel += dtype == DType::f64 ? 1e-14 : 1e-6;
              CHECK_CLOSE(got[0], want[0], tol);
              // Factors of a normal draw multiply to at most about 30.
              const double unit = dtype == DType::f64 ? 0x1p-50 : dtype == DType::f32 ? 0x1p-21 : 0x1p-8;
              for (const std::size_t i : {1, 2}) CHECK_CLOSE(got[i], want[i], (Tol{8 * unit, 30 * unit}));
              const double terms = static_cast<double>(tokens * (shared ? groups : 1));
              const double wide = dtype == DType::f64 ? unit : 0x1p-21;
              CHECK_CLOSE(got[3], want[3], (Tol{8 * wide, 30 * wide * std::sqrt(terms)}));
              CHECK(got[3].dtype() == accumulate_dtype(dtype));
            }
  });
}

TEST_CASE("gated_rmsnorm, norm first: against finite differences") {
  for (const bool shared : {false, true})
    for (const std::int64_t groups : {1, 2, 5}) {
      CAPTURE(groups);
      const Case c = make_case(4, groups, 10 / groups, shared, DType::f64);
      const auto fn = [&](Context& ctx, const std::vector<Var>& in) {
        return std::vector<Var>{
            gated_rmsnorm(ctx, in[0], in[1], in[2], groups, 1e-3, {}, GateOrder::norm_first)};
      };
      CHECK_GRADIENTS(fn, {c.y.clone(), c.z.clone(), c.weight});
      for (std::size_t only = 0; only < 3; ++only) {
        std::vector<bool> wants(3, false);
        wants[only] = true;
        CHECK_GRADIENTS(fn, {c.y.clone(), c.z.clone(), c.weight}, {.wants = wants});
      }
    }
}

TEST_CASE("gated_rmsnorm, norm first: groups of every block size, and wider than its registers, on cuda" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [tokens, groups, width, aligned, shared] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool>{67, 2, 520, true, false},
          {5, 2, 1500, false, true},
          {3, 1, 9001, false, false},
          {2, 2, 17008, true, true}}) {
      CAPTURE(dtype);
      CAPTURE(width);
      const Case c = make_case(tokens, groups, width, shared, dtype, Device::cuda, aligned);
      const auto got = run(c), again = run(c), want = run(c.to(Device::cpu)),
                 copy = run({c.y.clone(), c.z.clone(), c.weight, c.groups});
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(i);
        CHECK_CLOSE(got[i], want[i], sum_tol(i == 3 ? DType::f32 : dtype, width + tokens, 30));
        CHECK_BITS(again[i], got[i]);
        CHECK_BITS(copy[i], got[i]);
      }
    }
}

TEST_CASE("gated_rmsnorm, norm first: a NaN of z stays in its channel, one of y in its group" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_rmsnorm")) {
    CAPTURE(device);
    const Case c = make_case(2, 3, 4, false, DType::f32, device);
    c.z.narrow(0, 1, 1).narrow(-1, 5, 1).fill(std::nan(""));
    c.y.narrow(0, 0, 1).narrow(-1, 9, 1).fill(std::nan(""));
    const auto out = run(c)[0].to_vector();
    for (std::size_t e = 0; e < out.size(); ++e)
      CHECK(std::isnan(out[e]) == (e == 12 + 5 || (e >= 8 && e < 12)));
  }
}

TEST_CASE("gated_rmsnorm, norm first: strided gradient buffers, an f32 weight beside bf16" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_rmsnorm"))
    for (const bool shared : {false, true}) {
      CAPTURE(device);
      const Case c = make_case(13, 3, 4, shared, DType::f32, device, true);
      const auto alone = run(c);
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      auto parent = std::make_shared<GradNode>(Shape{13, 40}, DType::f32, device, false);
      const Var y(c.y, std::make_shared<GradNode>(parent, c.y.shape(), 4));
      const Var z(c.z, std::make_shared<GradNode>(parent, c.z.shape(), 20));
      const Var out = norm(ctx, c, y, z, c.weight);
      tape.backward(out, random_tensor(out.shape(), DType::f32, 4).to(device));
      CHECK_BITS(y.node()->grad(), alone[1]);
      CHECK_BITS(z.node()->grad(), alone[2]);
      Case mixed = make_case(9, 2, 16, shared, DType::bf16, device);
      const auto plain = run(mixed);
      mixed.weight = mixed.weight.to(DType::f32);
      const auto with_f32 = run(mixed);
      for (std::size_t i = 0; i < plain.size(); ++i) CHECK_BITS(with_f32[i], plain[i]);
    }
}

TEST_CASE("gated_rmsnorm, norm first: rows behind 2^31 elements, on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Case near = make_case(3, 2, 16, true, DType::bf16).to(Device::cuda);
  const auto far = [](const Tensor& x) { return far_rows(x.to(Device::cpu), Device::cuda); };
  const auto got = run({far(near.y), far(near.z), near.weight, 2}), want = run(near);
  for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i], want[i]);
}

TEST_CASE("gated_rmsnorm, norm first: the number of threads changes no bit; no tokens") {
  for (const bool shared : {false, true}) {
    const Case c = make_case(300, 4, 32, shared, DType::f32);
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const auto one = run(c);
    omp_set_num_threads(3);
    const auto three = run(c);
    omp_set_num_threads(threads);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK_BITS(one[i], three[i]);
    const auto none = run(make_case(0, 2, 3, shared, DType::f32));
    CHECK_BITS(none[3], Tensor::zeros({shared ? 3 : 6}, DType::f32, Device::cpu));
  }
}

TEST_CASE("gated_rmsnorm: one weight for all groups, with the norm first alone") {
  Context ctx;
  const Case c = make_case(4, 2, 3, true, DType::f32);
  CHECK_NOTHROW(norm(ctx, c, c.y, c.z, c.weight));
  CHECK_THROWS_AS(gated_rmsnorm(ctx, c.y, c.z, c.weight, 2, eps), Error);
  CHECK_THROWS_AS(norm(ctx, c, c.y, c.z, random_tensor({2}, DType::f32, 1)), Error);
}
