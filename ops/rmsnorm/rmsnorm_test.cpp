#include "ops/rmsnorm/rmsnorm.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "core/variants.h"
#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

constexpr double eps = 1e-5;

const std::vector<std::string>& variants() { return kernel_variants().at("rmsnorm"); }

struct Outcome {
  Tensor sum, y, dx, dw;
};

/// The formulas, f64. An undefined d_sum counts as zero, an undefined residual as absent.
Outcome reference(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& dy,
                  const Tensor& d_sum, double offset = 0) {
  const auto cols = static_cast<std::size_t>(x.cols());
  auto s = x.to_vector();
  if (residual) {
    const auto r = residual.to_vector();
    for (std::size_t i = 0; i < s.size(); ++i) s[i] += r[i];
    const Tensor rounded = Tensor::from(s, x.shape()).to(x.dtype());
    s = rounded.to_vector();
  }
  auto w = weight.to_vector();
  for (double& v : w) v += offset;
  const auto g = dy.to_vector();
  auto dx = d_sum ? d_sum.to_vector() : std::vector<double>(s.size());
  std::vector<double> y(s.size()), dw(cols);
  for (std::size_t r = 0; r < s.size() / cols; ++r) {
    double squares = 0, dot = 0;
    for (std::size_t c = 0; c < cols; ++c) squares += s[r * cols + c] * s[r * cols + c];
    const double inv = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (std::size_t c = 0; c < cols; ++c) dot += w[c] * g[r * cols + c] * s[r * cols + c] * inv;
    for (std::size_t c = 0; c < cols; ++c) {
      const std::size_t i = r * cols + c;
      const double n = s[i] * inv;
      y[i] = n * w[c];
      dw[c] += g[i] * n;
      dx[i] += inv * (w[c] * g[i] - n * dot / static_cast<double>(cols));
    }
  }
  return {Tensor::from(s, x.shape()), Tensor::from(y, x.shape()), Tensor::from(dx, x.shape()),
          Tensor::from(dw, weight.shape())};
}

struct Recorded {
  explicit Recorded(const std::string& variant = "fused") {
    choice.by_op["rmsnorm"] = variant;
    ctx.tape = &tape;
    ctx.kernels = &choice;
  }
  Tape tape;
  KernelChoice choice;
  Context ctx;
};

Var intermediate(const Tensor& t) {
  return Var(t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false));
}

/// bf16: y and sum are rounded; the gradient is rounded once or twice. A sum of n terms near 1 enters
/// through inv_rms only.
Tol tolerance(DType dtype, std::int64_t cols) {
  if (dtype == DType::bf16) return {2 * 0x1p-8, 0x1p-8};
  return sum_tol(dtype, cols, 4);
}

/// The runs have no dw where the weight is undefined.
Outcome run_plain(const Tensor& x, const Tensor& weight, const Tensor& dy, double offset = 0) {
  Recorded r;
  const Var in = intermediate(x), w = weight ? Var::leaf(weight) : Var();
  const Var y = rmsnorm(r.ctx, in, w, eps, offset);
  r.tape.backward(y, dy);
  return {{}, y.value(), in.node()->grad(), weight ? w.grad() : Tensor()};
}

Outcome run_residual(const std::string& variant, const Tensor& x, const Tensor& residual,
                     const Tensor& weight, const Tensor& dy, const Tensor& d_sum, double offset = 0) {
  Recorded r(variant);
  const Var in = intermediate(x), other = intermediate(residual), w = weight ? Var::leaf(weight) : Var();
  const ResidualNorm out = residual_rmsnorm(r.ctx, in, other, w, eps, offset);
  const std::vector<Var> outputs{out.normed, out.sum};
  const std::vector<Tensor> gradients{dy, d_sum};
  const std::size_t count = d_sum ? 2 : 1;
  r.tape.backward(std::span(outputs).first(count), std::span(gradients).first(count));
  CHECK_BITS(in.node()->grad(), other.node()->grad());
  return {out.sum.value(), out.normed.value(), in.node()->grad(), weight ? w.grad() : Tensor()};
}

}  // namespace

TEST_CASE("rmsnorm: against the formulas" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    // Widths on CUDA: one column, packs with and without a rest, every block size, with and without columns
    // beyond those in registers.
    const bool on_cpu = device == Device::cpu;
    const std::vector<std::int64_t> all_rows =
        on_cpu ? std::vector<std::int64_t>{0, 1, 2, 63, 64, 65, 131} : std::vector<std::int64_t>{0, 1, 65};
    const std::vector<std::int64_t> all_cols =
        on_cpu ? std::vector<std::int64_t>{1, 2, 15, 16, 17, 31, 32, 33, 64, 251}
               : std::vector<std::int64_t>{1, 16, 33, 251, 1000};
    const auto random = [&](const Shape& shape, std::uint64_t seed) {
      return random_tensor(shape, dtype, seed).to(device);
    };
    for (const std::int64_t rows : all_rows)
      for (const std::int64_t cols : all_cols) {
        CAPTURE(rows);
        CAPTURE(cols);
        const Tensor x = random({rows, cols}, 1), w = random({cols}, 2);
        const Tensor dy = random({rows, cols}, 3), d_sum = random({rows, cols}, 4);
        const Tensor other = random({rows, cols}, 5);
        const Tol tol = tolerance(dtype, cols);
        const Tol dw_tol = sum_tol(dtype == DType::bf16 ? DType::f32 : dtype, rows + cols, 8);
        // With one column, x / |x| does not depend on x. The gradient is then a difference of equal numbers
        // of the size of inv_rms.
        const Tol dx_tol = cols == 1 ? Tol{tol.rel, 1e3 * tol.abs} : Tol{tol.rel, 8 * tol.abs};
        for (const double offset : {0.0, 1.0}) {
          if (!on_cpu && offset != 0 && rows != 65) continue;
          CAPTURE(offset);
          const Outcome got = run_plain(x, w, dy, offset), want = reference(x, {}, w, dy, {}, offset);
          CHECK_CLOSE(got.y, want.y, tol);
          CHECK_CLOSE(got.dx, want.dx, dx_tol);
          CHECK_CLOSE(got.dw, want.dw, dw_tol);
          for (const std::string& variant : variants())
            for (const bool both : {false, true}) {
              CAPTURE(variant);
              const Tensor extra = both ? d_sum : Tensor();
              const Outcome fused = run_residual(variant, x, other, w, dy, extra, offset);
              const Outcome ref = reference(x, other, w, dy, extra, offset);
              CHECK_CLOSE(fused.sum, ref.sum, (Tol{dtype == DType::f32 ? 0x1p-24 : 0, 0}));
              CHECK_CLOSE(fused.y, ref.y, tol);
              CHECK_CLOSE(fused.dx, ref.dx, dx_tol);
              CHECK_CLOSE(fused.dw, ref.dw, dw_tol);
            }
        }
      }
  });
}

// A factor of one rounds nothing, so the bits are those of a weight of ones.
TEST_CASE("rmsnorm: without a weight" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    const auto random = [&](const Shape& shape, std::uint64_t seed) {
      return random_tensor(shape, dtype, seed).to(device);
    };
    // Widths on CUDA: as above. Of the wide rows a window begins at an address that is not aligned.
    for (const std::int64_t rows : {0, 1, 65})
      for (const std::int64_t cols : {1, 16, 33, 251, 1000}) {
        CAPTURE(rows);
        CAPTURE(cols);
        const Tensor ones = Tensor::empty({cols}, dtype, device);
        ones.fill(1);
        const Tensor x = random({rows, cols + 1}, 1).narrow(-1, 1, cols), other = random({rows, cols}, 2),
                     dy = random({rows, cols}, 3), d_sum = random({rows, cols}, 4);
        const Outcome got = run_plain(x, {}, dy), want = run_plain(x, ones, dy);
        CHECK_BITS(got.y, want.y);
        CHECK_BITS(got.dx, want.dx);
        CHECK_CLOSE(got.y, reference(x, {}, ones, dy, {}).y, tolerance(dtype, cols));
        for (const std::string& variant : variants())
          for (const bool both : {false, true}) {
            CAPTURE(variant);
            const Tensor extra = both ? d_sum : Tensor();
            const Outcome sum = run_residual(variant, x, other, {}, dy, extra),
                          of_ones = run_residual(variant, x, other, ones, dy, extra);
            CHECK_BITS(sum.sum, of_ones.sum);
            CHECK_BITS(sum.y, of_ones.y);
            CHECK_BITS(sum.dx, of_ones.dx);
          }
      }
    if (device == Device::cpu) return;
    const Tensor wide = random({3, 17000}, 5), ones = Tensor::empty({17000}, dtype, device);
    ones.fill(1);
    const Outcome got = run_plain(wide, {}, wide), want = run_plain(wide, ones, wide);
    CHECK_BITS(got.y, want.y);
    CHECK_BITS(got.dx, want.dx);
  });
}

// As attention norms heads: each is a row, here the first half of one.
TEST_CASE("rmsnorm: heads in wider rows, without a weight" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const std::vector<std::int64_t> halves{16, 16};
    const Tensor rows = random_tensor({5, 64}, DType::f32, 1).to(device),
                 dy = random_tensor({10, 16}, DType::f32, 2).to(device);
    Recorded r;
    const Var all = Var::leaf(rows);
    const Var heads = split_last(r.ctx, reshape(r.ctx, all, {10, 32}), halves)[0];
    CHECK_FALSE(heads.value().contiguous());
    const Var y = rmsnorm(r.ctx, heads, Var(), eps);
    r.tape.backward(y, dy);
    const auto first_halves = [](const Tensor& t) { return t.reshape({10, 32}).narrow(-1, 0, 16); };
    const Outcome want = run_plain(first_halves(rows).clone(), {}, dy);
    CHECK_BITS(y.value(), want.y);
    CHECK_BITS(first_halves(all.grad()), want.dx);
    for (const double g : all.grad().reshape({10, 32}).narrow(-1, 16, 16).to_vector()) CHECK(g == 0);
  }
}

TEST_CASE("rmsnorm: against finite differences") {
  const Tensor x = random_tensor({5, 7}, DType::f64, 1), w = random_tensor({7}, DType::f64, 2);
  const Tensor other = random_tensor({5, 7}, DType::f64, 3);
  for (const std::vector<bool>& wants : {std::vector<bool>{}, {true, false}, {false, true}})
    for (const double offset : {0.0, 1.0}) {
      GradCheckOptions options;
      options.wants = wants;
      CHECK_GRADIENTS(
          [&](Context& ctx, const std::vector<Var>& v) {
            return std::vector<Var>{rmsnorm(ctx, v[0], v[1], eps, offset)};
          },
          {x, w}, options);
    }
  CHECK_GRADIENTS(
      [&](Context& ctx, const std::vector<Var>& v) {
        const ResidualNorm r = residual_rmsnorm(ctx, rmsnorm(ctx, v[0], Var(), 0.1), v[1], Var(), 0.1);
        return std::vector<Var>{r.normed, r.sum};
      },
      {x, other});
  for (const std::string& variant : variants()) {
    const KernelChoice choice{{{"rmsnorm", variant}}};
    for (const std::vector<bool>& wants :
         {std::vector<bool>{}, {true, false, false}, {false, true, false}, {false, false, true}})
      for (const bool use_sum : {true, false}) {
        CAPTURE(variant);
        const double offset = use_sum ? 1 : 0;
        GradCheckOptions options;
        options.wants = wants;
        CHECK_GRADIENTS(
            [&](Context& ctx, const std::vector<Var>& v) {
              Context chosen = ctx;
              chosen.kernels = &choice;
              const ResidualNorm r = residual_rmsnorm(chosen, v[0], v[1], v[2], 0.1, offset);
              return use_sum ? std::vector<Var>{r.normed, r.sum} : std::vector<Var>{r.normed};
            },
            {x, other, w}, options);
      }
    // x added to itself, and a chain of two blocks that shares the stream.
    CHECK_GRADIENTS(
        [&](Context& ctx, const std::vector<Var>& v) {
          Context chosen = ctx;
          chosen.kernels = &choice;
          const ResidualNorm a = residual_rmsnorm(chosen, v[0], v[0], v[1], eps);
          const ResidualNorm b = residual_rmsnorm(chosen, a.normed, a.sum, v[1], eps);
          return std::vector<Var>{b.normed, b.sum};
        },
        {x, w});
  }
}

TEST_CASE("rmsnorm: only the sum is used" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    for (const std::string& variant : variants()) {
      Recorded r(variant);
      const Tensor x = random_tensor({3, 4}, DType::f32, 1).to(device),
                   g = random_tensor({3, 4}, DType::f32, 2).to(device);
      const Var a = Var::leaf(x), b = Var::leaf(x),
                w = Var::leaf(random_tensor({4}, DType::f32, 3).to(device));
      const ResidualNorm out = residual_rmsnorm(r.ctx, a, b, w, eps);
      r.tape.backward(out.sum, g);
      CHECK_BITS(a.grad(), g);
      CHECK_BITS(b.grad(), g);
      CHECK_FALSE(w.node()->filled());
    }
  }
}

TEST_CASE("rmsnorm: bf16 rounds once, after the weight" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor x = random_tensor({9, 40}, DType::bf16, 1).to(device),
                 w = random_tensor({40}, DType::bf16, 2).to(device);
    for (const double offset : {0.0, 1.0}) {
      CAPTURE(offset);
      Context ctx;
      const auto y = rmsnorm(ctx, x, w, eps, offset).value().to_vector(), in = x.to_vector(),
                 weight = w.to_vector();
      int off = 0;
      for (std::size_t r = 0; r < 9; ++r) {
        double squares = 0;
        for (std::size_t c = 0; c < 40; ++c) squares += in[r * 40 + c] * in[r * 40 + c];
        const auto inv = static_cast<float>(1 / std::sqrt(squares / 40 + eps));
        for (std::size_t c = 0; c < 40; ++c) {
          const float n = static_cast<float>(in[r * 40 + c]) * inv;
          const float scale = static_cast<float>(offset) + static_cast<float>(weight[c]);
          off += y[r * 40 + c] != static_cast<double>(bf16(n * scale));
        }
      }
      CHECK(off <= 1);  // inv is itself rounded: a tie may fall the other way
    }
  }
}

TEST_CASE("rmsnorm: fused and separate agree in the forward pass, bit for bit" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    const Tensor x = random_tensor({70, 48}, dtype, 1).to(device),
                 other = random_tensor({70, 48}, dtype, 2).to(device);
    const Tensor w = random_tensor({48}, dtype, 3).to(device),
                 dy = random_tensor({70, 48}, dtype, 4).to(device);
    for (const double offset : {0.0, 1.0}) {
      const Outcome a = run_residual("fused", x, other, w, dy, {}, offset),
                    b = run_residual("separate", x, other, w, dy, {}, offset);
      CHECK_BITS(a.sum, b.sum);
      CHECK_BITS(a.y, b.y);
      CHECK_BITS(a.dw, b.dw);
      CHECK_BITS(a.dx, b.dx);
    }
  });
}

TEST_CASE("rmsnorm: rows that are wider than a block's registers, and of every alignment, on cuda" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [start, cols, offset] : {std::tuple<std::int64_t, std::int64_t, double>{0, 17000, 0},
                                              {8, 8300, 0},
                                              {0, 4104, 0},
                                              {1, 2100, 0},
                                              {8, 27, 0},
                                              {0, 17000, 1},
                                              {1, 8300, 1}}) {
      CAPTURE(dtype);
      CAPTURE(start);
      CAPTURE(cols);
      const Shape whole{3, 17008};
      const auto window = [start = start, cols = cols](const Tensor& t) { return t.narrow(-1, start, cols); };
      const Tensor x = random_tensor(whole, dtype, 1), other = random_tensor(whole, dtype, 2),
                   dy = random_tensor(whole, dtype, 3), d_sum = random_tensor(whole, dtype, 4),
                   w = random_tensor({17008}, dtype, 5);
      const auto on = [](const Tensor& t) { return t.to(Device::cuda); };
      const auto outcome = [&, offset = offset](const auto& move) {
        return run_residual("fused", window(move(x)), window(move(other)), window(move(w)), window(move(dy)),
                            window(move(d_sum)), offset);
      };
      const Outcome want = reference(window(x), window(other), window(w), window(dy), window(d_sum), offset);
      const Outcome got = outcome(on), again = outcome(on);
      const Tol tol = tolerance(dtype, cols);
      CHECK_CLOSE(got.sum, want.sum, (Tol{dtype == DType::f32 ? 0x1p-24 : 0, 0}));
      CHECK_CLOSE(got.y, want.y, tol);
      CHECK_CLOSE(got.dx, want.dx, (Tol{tol.rel, 8 * tol.abs}));
      CHECK_CLOSE(got.dw, want.dw, sum_tol(DType::f32, cols, 8));
      CHECK_BITS(again.y, got.y);
      CHECK_BITS(again.dx, got.dx);
      CHECK_BITS(again.dw, got.dw);
    }
}

TEST_CASE("rmsnorm: bits do not depend on the number of threads") {
  const int before = omp_get_max_threads();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({700, 96}, dtype, 1), other = random_tensor({700, 96}, dtype, 2);
    const Tensor w = random_tensor({96}, dtype, 3), dy = random_tensor({700, 96}, dtype, 4);
    omp_set_num_threads(1);
    const Outcome one = run_residual("fused", x, other, w, dy, dy);
    omp_set_num_threads(3);
    const Outcome three = run_residual("fused", x, other, w, dy, dy);
    omp_set_num_threads(before);
    CHECK_BITS(one.y, three.y);
    CHECK_BITS(one.sum, three.sum);
    CHECK_BITS(one.dx, three.dx);
    CHECK_BITS(one.dw, three.dw);
  }
}

TEST_CASE("rmsnorm: strided rows, gradients into windows, more dimensions" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const std::vector<std::int64_t> widths{24, 8};
    const Tensor wide = random_tensor({10, 32}, DType::f32, 1).to(device),
                 w = random_tensor({24}, DType::f32, 2).to(device);
    const Tensor dy = random_tensor({10, 24}, DType::f32, 3).to(device),
                 other = random_tensor({10, 24}, DType::f32, 4).to(device);
    const Outcome want = run_plain(wide.narrow(-1, 0, 24).clone(), w, dy);
    {
      Recorded r;
      const Var x = Var::leaf(wide);
      const Var y = rmsnorm(r.ctx, split_last(r.ctx, x, widths)[0], w, eps);
      const Tensor wide_dy = Tensor::empty({10, 30}, DType::f32, device);
      wide_dy.narrow(-1, 3, 24).copy_from(dy);
      r.tape.backward(y, wide_dy.narrow(-1, 3, 24));
      CHECK_BITS(y.value(), want.y);
      CHECK_BITS(x.grad().narrow(-1, 0, 24), want.dx);
      for (const double g : x.grad().narrow(-1, 24, 8).to_vector()) CHECK(g == 0);
    }
    const Outcome fused = run_residual("fused", wide.narrow(-1, 0, 24).clone(), other, w, dy, dy);
    for (const bool residual_wants : {false, true}) {
      // The windowed part is used twice: its gradient grows after the norm has added to it. The residual's
      // gradient must not grow.
      Recorded r;
      const Var x = Var::leaf(wide);
      const Var part = split_last(r.ctx, x, widths)[0];
      const Var again = reshape(r.ctx, part, {10, 24});
      const Var res = residual_wants ? intermediate(other) : Var(other);
      const ResidualNorm out = residual_rmsnorm(r.ctx, part, res, w, eps);
      const std::vector<Var> outputs{out.normed, out.sum, again};
      const std::vector<Tensor> gradients{dy, dy, dy};
      r.tape.backward(outputs, gradients);
      if (residual_wants) CHECK_BITS(res.node()->grad(), fused.dx);
      CHECK_CLOSE(x.grad().narrow(-1, 0, 24), add(r.ctx, fused.dx, dy).value(), (Tol{0x1p-24, 1e-7}));
    }
    const Outcome deep =
        run_plain(wide.narrow(-1, 0, 24).clone().reshape({2, 5, 24}), w, dy.reshape({2, 5, 24}));
    CHECK(deep.y.shape() == Shape{2, 5, 24});
    CHECK_BITS(deep.dx.reshape({10, 24}), want.dx);
  }
}

TEST_CASE("rmsnorm: a gradient that others hold is not overwritten" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor x = random_tensor({4, 8}, DType::f32, 1).to(device),
                 w = random_tensor({8}, DType::f32, 2).to(device);
    const Tensor dy = random_tensor({4, 8}, DType::f32, 3).to(device), keep = dy.clone();
    run_residual("fused", x, x, w, dy, dy);
    CHECK_BITS(dy, keep);
    // A gradient that nobody else holds is overwritten; the values are the same.
    Recorded r;
    const Var in = intermediate(x);
    const Var y = rmsnorm(r.ctx, in, w, eps);
    r.tape.backward(y, dy.clone());
    CHECK_BITS(in.node()->grad(), run_plain(x, w, dy).dx);
  }
}

TEST_CASE("rmsnorm: the gradient of the sum gives its place to the result when nobody else holds it" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor x = random_tensor({4, 8}, DType::f32, 1).to(device),
                 w = random_tensor({8}, DType::f32, 2).to(device);
    const Tensor dy = random_tensor({4, 8}, DType::f32, 3).to(device),
                 d_sum = random_tensor({4, 8}, DType::f32, 4).to(device);
    Recorded r;
    const Var in = intermediate(x), other = intermediate(x);
    const ResidualNorm out = residual_rmsnorm(r.ctx, in, other, w, eps);
    out.sum.node()->add(d_sum.clone());
    const void* place = out.sum.node()->grad().address();
    out.normed.node()->add(dy);  // dy is held here, so it must not be overwritten
    const Tensor keep = dy.clone();
    r.tape.backward(Var(x), x);
    CHECK(in.node()->grad().address() == place);
    CHECK_BITS(in.node()->grad(), run_residual("fused", x, x, w, dy, d_sum).dx);
    CHECK_BITS(other.node()->grad(), in.node()->grad());
    CHECK_BITS(dy, keep);
  }
}

TEST_CASE("rmsnorm: zero rows of x, NaN, a weight that is not a leaf" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    Context ctx;
    const Tensor x = Tensor::zeros({2, 4}, DType::f32, device),
                 w = random_tensor({4}, DType::f32, 1).to(device);
    for (const double v : rmsnorm(ctx, x, w, eps).value().to_vector()) CHECK(v == 0);
    x.narrow(0, 0, 1).narrow(1, 1, 1).fill(std::nan(""));
    const auto y = rmsnorm(ctx, x, w, eps).value().to_vector();
    CHECK(std::isnan(y[0]));
    CHECK(y[4] == 0);
    Recorded r;
    const Var weight = intermediate(w);
    const Tensor ones = random_tensor({2, 4}, DType::f32, 2).to(device);
    r.tape.backward(rmsnorm(r.ctx, ones, weight, eps), ones);
    CHECK_BITS(weight.node()->grad(), run_plain(ones, w, ones).dw);
  }
}

TEST_CASE("rmsnorm: an offset of zero is not added" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    Context ctx;
    const auto filled = [&](double value) {
      const Tensor t = Tensor::empty({4}, DType::f32, device);
      t.fill(value);
      return t;
    };
    const Tensor x = filled(1), w = filled(-0.0);
    for (const double y : rmsnorm(ctx, x, w, eps).value().to_vector()) CHECK(std::signbit(y));
  }
}

TEST_CASE("rmsnorm: errors") {
  Context ctx;
  const Tensor x = random_tensor({3, 4}, DType::f32, 1), w = random_tensor({4}, DType::f32, 2);
  CHECK_THROWS_AS(rmsnorm(ctx, Tensor(), w, eps), Error);
  CHECK(message_of([&] { rmsnorm(ctx, x, Tensor(), eps, 1); }) ==
        "rmsnorm: offset: want 0 without a weight, got 1");
  CHECK_THROWS_AS(rmsnorm(ctx, Tensor::scalar(1, DType::f32, Device::cpu), w, eps), Error);
  CHECK_THROWS_AS(rmsnorm(ctx, Tensor::zeros({3, 4}, DType::i32, Device::cpu), w, eps), Error);
  CHECK_THROWS_AS(rmsnorm(ctx, Tensor::zeros({3, 0}, DType::f32, Device::cpu),
                          Tensor::zeros({0}, DType::f32, Device::cpu), eps),
                  Error);
  CHECK_THROWS_AS(rmsnorm(ctx, x, w.narrow(0, 0, 3), eps), Error);
  CHECK_THROWS_AS(rmsnorm(ctx, x, w.to(DType::bf16), eps), Error);
  CHECK_THROWS_AS(rmsnorm(ctx, x, w, -1e-5), Error);
  CHECK_THROWS_AS(rmsnorm(ctx, x, w, std::numeric_limits<double>::quiet_NaN()), Error);
  CHECK_THROWS_AS(rmsnorm(ctx, x, w, eps, std::numeric_limits<double>::quiet_NaN()), Error);
  CHECK_THROWS_AS(residual_rmsnorm(ctx, x, x, w, eps, std::numeric_limits<double>::infinity()), Error);
  CHECK_THROWS_AS(residual_rmsnorm(ctx, x, x.narrow(0, 0, 2), w, eps), Error);
  CHECK_THROWS_AS(residual_rmsnorm(ctx, x, x.to(DType::f64), w, eps), Error);
  CHECK_THROWS_AS(residual_rmsnorm(ctx, x, Tensor(), w, eps), Error);
  CHECK_THROWS_AS(residual_rmsnorm(ctx, x, x, x, eps), Error);
  CHECK_THROWS_AS(check_kernel_choice({{{"rmsnorm", "fast"}}}), Error);
}
