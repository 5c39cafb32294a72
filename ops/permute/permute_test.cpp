#include "ops/permute/permute.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "core/host_wait.h"
#include "core/rng.h"
#include "ops/permute/permute_kernels.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

// k different experts for each token; the last expert gets none when `leave_one`.
Tensor random_choices(std::int64_t tokens, std::int64_t choices, std::int64_t experts,
                      bool leave_one = false) {
  Tensor t = Tensor::empty({tokens, choices}, DType::i32, Device::cpu);
  const RandomStream stream(3, "choices");
  const std::int64_t used = leave_one ? experts - 1 : experts;
  for (std::int64_t r = 0; r < tokens; ++r) {
    const auto first = static_cast<std::int64_t>(
        stream.below(static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(used)));
    for (std::int64_t j = 0; j < choices; ++j)
      t.row<std::int32_t>(r)[j] = static_cast<std::int32_t>((first + j * 2) % used);
  }
  return t;
}

Permutation to_host(const Permutation& p) {
  return {p.offsets ? p.offsets.to(Device::cpu) : Tensor(), p.source.to(Device::cpu), p.slot.to(Device::cpu)};
}

Tensor reference_combine(const Tensor& rows, const Tensor& weights, const Permutation& on_device) {
  const Tensor r = rows.to(Device::cpu).to(DType::f64), w = weights.to(Device::cpu).to(DType::f64);
  const Permutation p = to_host(on_device);
  Tensor y = Tensor::zeros({p.slot.dim(0), rows.cols()}, DType::f64, Device::cpu);
  for (std::int64_t t = 0; t < p.slot.dim(0); ++t)
    for (std::int64_t j = 0; j < p.slot.dim(1); ++j) {
      const std::int32_t row = p.slot.row<std::int32_t>(t)[j];
      for (std::int64_t c = 0; c < rows.cols() && row >= 0; ++c)
        y.row<double>(t)[c] += w.row<double>(t)[j] * r.row<double>(row)[c];
    }
  return y;
}

Tensor small_ints(const Shape& shape, DType dtype) {
  Tensor t = Tensor::empty(shape, DType::f32, Device::cpu);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = static_cast<float>((i * 37 + 5) % 17 - 8);
  return t.to(dtype);
}

struct Combined {
  Tensor y, drows, dweights;
};
Combined run_unpermute(const Tensor& rows, const Tensor& weights, const Permutation& p, const Tensor& dy) {
  const Var r = Var::leaf(rows), w = Var::leaf(weights);
  Tape tape;
  Context ctx{.tape = &tape};
  const Var y = unpermute(ctx, r, w, p);
  tape.backward(y, dy);
  return {y.value(), r.grad(), w.grad()};
}

Var intermediate(const Tensor& t) {
  return {t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false)};
}

Tensor permute_grad(const Tensor& x, const Permutation& p, const Tensor& dy) {
  const Var in = Var::leaf(x);
  Tape tape;
  Context ctx{.tape = &tape};
  tape.backward(permute(ctx, in, p), dy);
  return in.grad();
}

}  // namespace

TEST_CASE("permutation: worked example" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("permute")) {
    const Tensor experts = Tensor::from<std::int32_t>({2, 0, 0, 3, 2, 3}, {3, 2}).to(device);
    const Permutation p = make_permutation(experts, 5);
    CHECK_BITS(p.offsets, Tensor::from<std::int64_t>({0, 2, 2, 4, 6, 6}, {6}));
    CHECK(p.source.to_vector() == std::vector<double>{0, 1, 0, 2, 1, 2});
    CHECK(p.slot.to_vector() == std::vector<double>{2, 0, 1, 4, 3, 5});
  }
}

TEST_CASE("permutation: a bijection, stable, grouped by expert" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("permute"))
    for (const std::int64_t tokens : {0, 1, 7, 127})
      for (const std::int64_t choices : {0, 1, 3}) {
        CAPTURE(device);
        CAPTURE(tokens);
        CAPTURE(choices);
        const std::int64_t count = 11;
        const Tensor experts = random_choices(tokens, choices, count, true);
        const Permutation p = to_host(make_permutation(experts.to(device), count));
        REQUIRE(p.offsets.shape() == Shape{12});
        const std::span offsets(p.offsets.data<std::int64_t>(), 12);
        CHECK(offsets[0] == 0);
        CHECK(std::ranges::is_sorted(offsets));
        CHECK(offsets[11] == tokens * choices);
        CHECK(offsets[11] == offsets[10]);
        std::vector<std::int64_t> key(static_cast<std::size_t>(tokens * choices), -1);
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t j = 0; j < choices; ++j) {
            const std::int64_t r = p.slot.row<std::int32_t>(t)[j];
            const auto e = static_cast<std::size_t>(experts.row<std::int32_t>(t)[j]);
            CHECK(p.source.data<std::int32_t>()[r] == t);
            CHECK(r >= offsets[e]);
            CHECK(r < offsets[e + 1]);
            key[static_cast<std::size_t>(r)] = static_cast<std::int64_t>(e) * 1000000 + t * choices + j;
          }
        CHECK(std::ranges::adjacent_find(key, std::ranges::greater_equal{}) == key.end());
        CHECK((key.empty() || key.front() >= 0));
      }
}

TEST_CASE("permutation: some of the experts" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("permute")) {
    const Tensor experts = Tensor::from<std::int32_t>({2, 0, 0, 3, 2, 3}, {3, 2}).to(device);
    const Permutation p = make_permutation(experts, 5, {1, 3});
    CHECK_BITS(p.offsets, Tensor::from<std::int64_t>({0, 0, 2}, {3}));
    CHECK(p.source.to_vector() == std::vector<double>{0, 2});
    CHECK(p.slot.to_vector() == std::vector<double>{0, -1, -1, -1, 1, -1});
    for (const std::int64_t at : {0, 4, 5}) {
      const Permutation none = make_permutation(experts, 5, {at, at});
      CHECK_BITS(none.offsets, Tensor::from<std::int64_t>({0}, {1}));
      CHECK(none.source.numel() == 0);
      CHECK(none.slot.to_vector() == std::vector<double>(6, -1));
    }
  }
}

TEST_CASE("permutation: merged sources are in the order of experts, then of sources, then of rows" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("permute"))
    for (const std::int64_t sources : {0, 1, 3})
      for (const Range here : {Range{0, 5}, {1, 3}, {4, 5}, {2, 2}, {0, 0}}) {
        CAPTURE(device);
        CAPTURE(sources);
        CAPTURE(here.begin);
        // Source s has (3 s + 2 e) mod 4 rows of expert e.
        const Tensor ends = Tensor::empty({sources, 5}, DType::i64, Device::cpu);
        std::vector<std::int32_t> experts;
        for (std::int64_t s = 0; s < sources; ++s) {
          std::int64_t end = 0;
          for (std::int64_t e = 0; e < 5; ++e) {
            const std::int64_t rows = (3 * s + 2 * e) % 4;
            ends.row<std::int64_t>(s)[e] = end += rows;
            if (e >= here.begin && e < here.end)
              experts.insert(experts.end(), static_cast<std::size_t>(rows), static_cast<std::int32_t>(e));
          }
        }
        const std::int64_t rows = std::ssize(experts);
        const Permutation p = merge_by_expert(ends.to(device), here, rows),
                          want = make_permutation(Tensor::from(experts, {rows, 1}), 5, here);
        CHECK_BITS(p.offsets, want.offsets);
        CHECK_BITS(p.source, want.source);
        CHECK_BITS(p.slot, want.slot);
      }
}

TEST_CASE("permutation: the host reads a number of rows where some experts are elsewhere, and nothing else") {
  Context ctx;
  const Tensor experts = random_choices(9, 3, 6).to(Device::guard);
  const Tensor x = random_tensor({9, 4}, DType::f32, 1).to(Device::guard),
               weights = random_tensor({9, 3}, DType::f32, 2).to(Device::guard);
  const HostWaitName name("test of permute");
  const auto waits = [&](auto&& fn) {
    reset_host_waits();
    fn();
    return host_waits()["test of permute"];
  };
  CHECK(waits([&] {
          const Permutation p = make_permutation(experts, 6);
          (void)unpermute(ctx, permute(ctx, x, p), weights, p);
        }) == 0);
  CHECK(waits([&] {
          const Tensor ends = Tensor::from<std::int64_t>({2, 5}, {1, 2}).to(Device::guard);
          (void)inverse(merge_by_expert(ends, {0, 2}, 5));
        }) == 0);
  CHECK(waits([&] { (void)make_permutation(experts, 6, {1, 4}); }) == 1);
  const std::int64_t rows = make_permutation(experts, 6, {1, 4}).source.numel();
  CHECK(waits([&] { (void)make_permutation(experts, 6, {1, 4}, rows); }) == 0);
  CHECK_THROWS_AS(make_permutation(experts, 6, {1, 4}, rows + 1), Error);
}

TEST_CASE("permutation: the inverse of one row for each token" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("permute"), [](Device device, DType dtype) {
    for (const std::int64_t tokens : {0, 1, 97}) {
      const Permutation p = make_permutation(random_choices(tokens, 1, 5).to(device), 5), back = inverse(p);
      CHECK_FALSE(back.offsets.defined());
      const Tensor x = random_tensor({tokens, 33}, dtype, 2).to(device);
      Context ctx;
      CHECK_BITS(permute(ctx, permute(ctx, x, p), back).value(), x);
      CHECK_BITS(permute(ctx, permute(ctx, x, back), p).value(), x);
      CHECK_BITS(permute_grad(permute(ctx, x, p).value(), back, x),
                 permute(ctx, x, p).value().to(accumulate_dtype(dtype)));
    }
  });
}

TEST_CASE("permute: rows are exact copies and their gradients exact sums" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("permute"), [](Device device, DType dtype) {
    for (const std::int64_t tokens : {0, 1, 61})
      for (const std::int64_t cols : {0, 1, 31, 1031}) {
        CAPTURE(tokens);
        CAPTURE(cols);
        const Permutation p = make_permutation(random_choices(tokens, 3, 7).to(device), 7);
        const Tensor x = random_tensor({tokens, cols}, dtype, 1).to(device);
        Context ctx;
        const Var y = permute(ctx, x, p);
        CHECK(y.shape() == Shape{3 * tokens, cols});
        const Tensor source = p.source.to(Device::cpu), got = y.value().to(Device::cpu),
                     from = x.to(Device::cpu);
        for (std::int64_t r = 0; r < 3 * tokens; ++r)
          CHECK_BITS(got.select(r), from.select(source.data<std::int32_t>()[r]));
        const Tensor dy = small_ints({3 * tokens, cols}, dtype).to(device);
        Tensor ones = Tensor::empty({tokens, 3}, DType::f64, Device::cpu);
        ones.fill(1);
        CHECK_BITS(permute_grad(x, p, dy), reference_combine(dy, ones, p).to(accumulate_dtype(dtype)));
      }
  });
}

TEST_CASE("unpermute: with one choice and unit weights it undoes permute exactly") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Permutation p = make_permutation(random_choices(97, 1, 5), 5);
    const Tensor x = random_tensor({97, 33}, dtype, 2);
    Tensor ones = Tensor::empty({97, 1}, accumulate_dtype(dtype), Device::cpu);
    ones.fill(1);
    Context ctx;
    CHECK_BITS(unpermute(ctx, permute(ctx, x, p), ones, p).value(), x);
  }
}

TEST_CASE("unpermute: values and gradients against f64" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("permute"), [](Device device, DType dtype) {
    if (dtype == DType::f64) return;
    for (const std::int64_t tokens : {0, 1, 61})
      for (const std::int64_t cols : {0, 1, 31, 32, 601}) {
        CAPTURE(tokens);
        CAPTURE(cols);
        const std::int64_t k = 4;
        const Permutation p = make_permutation(random_choices(tokens, k, 9), 9);
        const Tensor rows = random_tensor({tokens * k, cols}, dtype, 3);
        const Tensor weights = random_tensor({tokens, k}, DType::f32, 4);
        const Tensor dy = random_tensor({tokens, cols}, dtype, 5);
        const Permutation there = make_permutation(random_choices(tokens, k, 9).to(device), 9);
        const Combined got = run_unpermute(rows.to(device), weights.to(device), there, dy.to(device));
        const Combined want =
            run_unpermute(rows.to(DType::f64), weights.to(DType::f64), p, dy.to(DType::f64));
        CHECK_CLOSE(want.y, reference_combine(rows, weights, p), sum_tol(DType::f64, k, 3));
        CHECK_CLOSE(got.y, want.y, sum_tol(dtype, k, 3));
        // The gradient of a leaf is f32, so a product of two stored values is rounded once.
        CHECK_CLOSE(got.drows, want.drows, (Tol{0x1p-23, 0}));
        CHECK_CLOSE(got.dweights, want.dweights, sum_tol(DType::f32, cols, 3));
      }
  });
}

TEST_CASE("permute, unpermute: gradients against central differences") {
  const Permutation p = make_permutation(random_choices(5, 3, 6), 6);
  CHECK_GRADIENTS(
      [&](Context& ctx, const std::vector<Var>& in) { return std::vector{permute(ctx, in[0], p)}; },
      {random_tensor({5, 4}, DType::f64, 1)});
  const DiffFn combine = [&](Context& ctx, const std::vector<Var>& in) {
    return std::vector{unpermute(ctx, in[0], in[1], p)};
  };
  const std::vector inputs{random_tensor({15, 37}, DType::f64, 2), random_tensor({5, 3}, DType::f64, 3)};
  CHECK_GRADIENTS(combine, inputs);
  CHECK_GRADIENTS(combine, inputs, {.wants = {true, false}});
  CHECK_GRADIENTS(combine, inputs, {.wants = {false, true}});
  const DiffFn both = [&](Context& ctx, const std::vector<Var>& in) {
    return std::vector{unpermute(ctx, permute(ctx, in[0], p), in[1], p)};
  };
  CHECK_GRADIENTS(both, {random_tensor({5, 4}, DType::f64, 4), random_tensor({5, 3}, DType::f64, 5)});
}

TEST_CASE("permute, unpermute: choices without a row add nothing") {
  const std::int64_t tokens = 61, k = 3, count = 8;
  const Tensor experts = random_choices(tokens, k, count);
  const Tensor x = random_tensor({tokens, 37}, DType::f64, 1),
               dy = random_tensor({tokens, 37}, DType::f64, 2),
               weights = random_tensor({tokens, k}, DType::f64, 3);
  Context ctx;
  Tensor y = Tensor::zeros(x.shape(), DType::f64, Device::cpu), dx = y.clone();
  Tensor dweights = Tensor::zeros(weights.shape(), DType::f64, Device::cpu);
  const auto add = [](const Tensor& sum, const Tensor& part) {
    for (std::int64_t i = 0; i < sum.numel(); ++i) sum.data<double>()[i] += part.data<double>()[i];
  };
  std::int64_t rows_of_parts = 0;
  for (const Range here : {Range{0, 3}, {3, 3}, {3, 4}, {4, 8}}) {
    const Permutation p = make_permutation(experts, count, here);
    const Tensor rows = permute(ctx, x, p).value();
    rows_of_parts += rows.rows();
    const Combined part = run_unpermute(rows, weights, p, dy);
    CHECK_CLOSE(part.y, reference_combine(rows, weights, p), sum_tol(DType::f64, k, 3));
    add(y, part.y);
    add(dweights, part.dweights);
    add(dx, permute_grad(x, p, part.drows));
  }
  CHECK(rows_of_parts == tokens * k);
  const Permutation all = make_permutation(experts, count);
  const Combined whole = run_unpermute(permute(ctx, x, all).value(), weights, all, dy);
  CHECK_CLOSE(y, whole.y, sum_tol(DType::f64, k, 3));
  CHECK_CLOSE(dx, permute_grad(x, all, whole.drows), sum_tol(DType::f64, k, 3));
  CHECK_BITS(dweights, whole.dweights);

  // Gradients with 2 of 6 experts here; some tokens have no row at all.
  const Permutation p = make_permutation(random_choices(9, 2, 6), 6, {2, 4});
  const std::int64_t rows = p.source.numel();
  CHECK(rows < 18);
  CHECK_GRADIENTS(
      [&](Context& c, const std::vector<Var>& in) {
        return std::vector{unpermute(c, in[0], in[1], p), permute(c, in[2], p),
                           unpermute(c, permute(c, in[2], p), in[1], p)};
      },
      {random_tensor({rows, 37}, DType::f64, 4), random_tensor({9, 2}, DType::f64, 5),
       random_tensor({9, 37}, DType::f64, 6)});
}

TEST_CASE("permute, unpermute: choices without a row add nothing, on every device" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("permute"), [](Device device, DType dtype) {
    const Tensor experts = random_choices(9, 2, 6);
    const Permutation here = make_permutation(experts.to(device), 6, {2, 4}), p = to_host(here);
    const std::int64_t rows = p.source.numel();
    CHECK(rows < 18);
    const Tensor x = random_tensor({9, 37}, dtype, 1), r = random_tensor({rows, 37}, dtype, 2),
                 weights = random_tensor({9, 2}, accumulate_dtype(dtype), 3);
    const Combined got = run_unpermute(r.to(device), weights.to(device), here, x.to(device)),
                   want = run_unpermute(r, weights, p, x);
    CHECK_CLOSE(got.y, want.y, sum_tol(dtype, 2, 2));
    CHECK_BITS(got.drows, want.drows);
    CHECK_CLOSE(got.dweights, want.dweights, sum_tol(accumulate_dtype(dtype), 37, 2));
    CHECK_BITS(permute_grad(x.to(device), here, r.to(device)), permute_grad(x, p, r));
  });
}

TEST_CASE("permute, unpermute: strided inputs and gradient windows" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("permute"))
    for (const std::int64_t cols : {5, 8}) {  // 8: rows of the copies can be read by 16 bytes
      CAPTURE(device);
      CAPTURE(cols);
      const Permutation p = make_permutation(random_choices(8, 2, 4).to(device), 4);
      const Tensor x = random_tensor({8, 12}, DType::f32, 1).to(device).narrow(1, 3, cols);
      const Tensor drows = random_tensor({16, 13}, DType::f32, 2).to(device).narrow(1, 4, cols);
      Context plain;
      CHECK_BITS(permute(plain, x, p).value(), permute(plain, x.clone(), p).value());
      CHECK_BITS(permute_grad(x, p, drows), permute_grad(x.clone(), p, drows.clone()));
      const Tensor weights = random_tensor({8, 6}, DType::f32, 3).to(device).narrow(1, 1, 2);
      const Combined strided = run_unpermute(drows, weights, p, x);
      const Combined packed = run_unpermute(drows.clone(), weights.clone(), p, x.clone());
      CHECK_BITS(strided.y, packed.y);
      CHECK_BITS(strided.drows, packed.drows);
      CHECK_BITS(strided.dweights, packed.dweights);

      // x is a window of a wider intermediate: its gradient is written in place, the rest stays as it was.
      const std::int64_t rest = 12 - cols;
      const auto whole = std::make_shared<GradNode>(Shape{8, 12}, DType::f32, device, false);
      const auto other = std::make_shared<GradNode>(whole, Shape{8, rest}, cols);
      const auto part = std::make_shared<GradNode>(whole, Shape{8, cols}, 0);
      other->add(Tensor::zeros({8, rest}, DType::f32, device));
      Tape tape;
      Context ctx{.tape = &tape};
      tape.backward(permute(ctx, Var(x, part), p), drows);
      const Tensor got = whole->grad();
      CHECK_BITS(got.narrow(1, 0, cols), permute_grad(x, p, drows));
      CHECK_BITS(got.narrow(1, cols, rest), Tensor::zeros({8, rest}, DType::f32, Device::cpu));
    }
}

TEST_CASE("permute, unpermute: intermediate bf16 gradients are rounded once" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("permute")) {
    const Permutation p = make_permutation(random_choices(23, 3, 5).to(device), 5);
    const Tensor halves = Tensor::empty({23, 3}, DType::f32, device);
    halves.fill(0.5);
    const Tensor x = small_ints({23, 19}, DType::bf16).to(device),
                 dy = small_ints({23, 19}, DType::bf16).to(device);
    const Var in(x, std::make_shared<GradNode>(x.shape(), DType::bf16, device, false));
    Tape tape;
    Context ctx{.tape = &tape};
    const Var y = unpermute(ctx, permute(ctx, in, p), halves, p);
    tape.backward(y, dy);
    // 3/2 times a small integer is exact in every format that occurs here.
    const Tensor want = small_ints({23, 19}, DType::bf16).to(DType::f64);
    for (std::int64_t i = 0; i < want.numel(); ++i) want.data<double>()[i] *= 1.5;
    CHECK_BITS(in.node()->take(), want.to(DType::bf16));
  }
}

TEST_CASE("permutation: on cuda that of the CPU, for several blocks and many experts" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  struct Size {
    std::int64_t tokens, choices, experts;
    Range here;
  };
  // Blocks of 32768 choices, parts of at most 512 experts.
  for (const Size& size : {Size{8192, 4, 128, {0, 128}},
                           {8193, 4, 128, {0, 128}},
                           {13001, 3, 7, {0, 7}},
                           {13001, 3, 7, {2, 5}},
                           {300, 3, 512, {0, 512}},
                           {300, 3, 1300, {0, 1300}},
                           {300, 3, 1300, {100, 1299}},
                           {34000, 1, 700, {0, 700}}}) {
    CAPTURE(size.tokens);
    CAPTURE(size.experts);
    CAPTURE(size.here.begin);
    const Tensor experts = random_choices(size.tokens, size.choices, size.experts);
    const Permutation got = make_permutation(experts.to(Device::cuda), size.experts, size.here),
                      want = make_permutation(experts, size.experts, size.here);
    CHECK_BITS(got.offsets, want.offsets);
    CHECK_BITS(got.source, want.source);
    CHECK_BITS(got.slot, want.slot);
  }
}

TEST_CASE("permutation: on cuda with room for more rows, for fewer, and experts that there are not" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor experts = Tensor::from<std::int32_t>({2, 0, 0, 3, 2, 3}, {3, 2}).to(Device::cuda);
  const Tensor x = random_tensor({3, 8}, DType::f32, 1), there = x.to(Device::cuda);
  Context ctx;
  const Permutation wide = make_permutation(experts, 5, {2, 4}, 6);
  CHECK(wide.offsets.to_vector() == std::vector<double>{0, 2, 4});
  CHECK(wide.source.to_vector() == std::vector<double>{0, 2, 1, 2, -1, -1});
  CHECK(wide.slot.to_vector() == std::vector<double>{0, -1, -1, 2, 1, 3});
  const Tensor rows = permute(ctx, there, wide).value();
  CHECK_BITS(rows.select(2), x.select(1));
  CHECK_BITS(rows.narrow(0, 4, 2), Tensor::zeros({2, 8}, DType::f32, Device::cpu));
  const Permutation narrow = make_permutation(experts, 5, {2, 4}, 3);
  CHECK(narrow.source.to_vector() == std::vector<double>{0, 2, 1});
  CHECK(narrow.slot.to_vector() == std::vector<double>{0, -1, -1, 2, 1, -1});
  const Tensor unknown = Tensor::from<std::int32_t>({-1, 7, 1}, {3, 1}).to(Device::cuda);
  CHECK(make_permutation(unknown, 2).slot.to_vector() == std::vector<double>{-1, -1, 0});
  const Tensor ends = Tensor::from<std::int64_t>({2, 5}, {1, 2}).to(Device::cuda);
  CHECK(merge_by_expert(ends, {0, 2}, 7).slot.to_vector() == std::vector<double>{0, 1, 2, 3, 4, -1, -1});
}

TEST_CASE("permute, unpermute: on cuda the bits of the CPU but for dot products, for wide rows" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  // Columns beyond those that a block of 256 threads holds in registers; many choices; windows.
  struct Size {
    std::int64_t tokens, choices, start, cols;
  };
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Size& size :
         {Size{3, 3, 0, 7000}, {2, 3, 8, 3104}, {2, 3, 3, 7001}, {5, 37, 0, 40}, {64, 2, 1, 3}}) {
      CAPTURE(dtype);
      CAPTURE(size.cols);
      const std::int64_t rows = size.tokens * size.choices, width = size.cols + 16;
      const Tensor experts = random_choices(size.tokens, size.choices, 90);
      const Tensor x = random_tensor({size.tokens, width}, dtype, 1),
                   r = random_tensor({rows, width}, dtype, 2),
                   weights = random_tensor({size.tokens, size.choices}, DType::f32, 3);
      const auto outcome = [&](Device device) {
        const Permutation p = make_permutation(experts.to(device), 90);
        const auto window = [&](const Tensor& t) { return t.to(device).narrow(-1, size.start, size.cols); };
        const Combined c = run_unpermute(window(r), weights.to(device), p, window(x));
        const Var in = intermediate(window(x)), out = intermediate(window(r));
        Tape tape;
        Context ctx{.tape = &tape};
        // Twice, so that gradients are added.
        const Var y = unpermute(ctx, out, weights.to(device), p),
                  again = unpermute(ctx, out, weights.to(device), p);
        tape.backward(std::vector{y, again, permute(ctx, in, p)},
                      std::vector{window(x), window(x), window(r)});
        return std::vector{c.y, c.drows, in.node()->grad(), out.node()->grad(), c.dweights};
      };
      const auto got = outcome(Device::cuda), again = outcome(Device::cuda), want = outcome(Device::cpu);
      // The compiler of either may contract products and sums.
      const Tol tol = sum_tol(dtype, size.choices, 2);
      CHECK_CLOSE(got[0], want[0], tol);
      CHECK_BITS(got[1], want[1]);
      CHECK_BITS(got[2], want[2]);
      CHECK_BITS(got[3], want[3]);
      CHECK_CLOSE(got[4], want[4], sum_tol(DType::f32, size.cols, 2));
      for (std::size_t i = 0; i < got.size(); ++i) CHECK_BITS(again[i], got[i]);
    }
}

TEST_CASE("permute, unpermute: gradients of parameters are added on cuda as on the CPU" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("permute"), [](Device device, DType dtype) {
    const Permutation p = make_permutation(random_choices(9, 2, 5).to(device), 5);
    const Tensor x = random_tensor({9, 16}, dtype, 1).to(device),
                 r = random_tensor({18, 16}, dtype, 2).to(device),
                 weights = random_tensor({9, 2}, accumulate_dtype(dtype), 3).to(device);
    const Var a = Var::leaf(x), b = Var::leaf(r), w = Var::leaf(weights);
    for (int pass = 0; pass < 2; ++pass) {
      Tape tape;
      Context ctx{.tape = &tape};
      tape.backward(std::vector{unpermute(ctx, b, w, p), permute(ctx, a, p)}, std::vector{x, r});
    }
    const auto twice = [](const Tensor& t) {
      const Tensor sum = t.to(Device::cpu).to(DType::f64).clone();
      for (std::int64_t i = 0; i < sum.numel(); ++i) sum.data<double>()[i] *= 2;
      return sum;
    };
    const Combined once = run_unpermute(r, weights, p, x);
    const Tol tol{dtype == DType::f64 ? 0x1p-52 : 0x1p-23, 0};
    CHECK_CLOSE(b.grad(), twice(once.drows), tol);
    CHECK_CLOSE(w.grad(), twice(once.dweights), tol);
    CHECK_CLOSE(a.grad(), twice(permute_grad(x, p, r)), tol);
  });
}

TEST_CASE("permute: to the gradient of an intermediate rows are added on cuda with the bits of the CPU" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t cols : {7, 64}) {
      CAPTURE(dtype);
      CAPTURE(cols);
      const Tensor experts = random_choices(61, 3, 7), x = random_tensor({61, cols}, dtype, 1),
                   dy = random_tensor({3 * 61, cols}, dtype, 2);
      const auto gradient = [&](Device device) {
        const Permutation p = make_permutation(experts.to(device), 7);
        const auto node = std::make_shared<GradNode>(x.shape(), dtype, device, false);
        for (int use = 0; use < 2; ++use) {
          Tape tape;
          Context ctx;
          ctx.tape = &tape;
          tape.backward(permute(ctx, Var(x.to(device), node), p), dy.to(device));
        }
        return node->take().to(Device::cpu);
      };
      CHECK_BITS(gradient(Device::cuda), gradient(Device::cpu));
    }
}

TEST_CASE("permute, unpermute: rows beyond 2^31 elements on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const std::int64_t stride = (std::int64_t{1} << 30) + 64, cols = 24;
  // Few columns of three long rows.
  const auto far = [&](const Tensor& values) {
    const Tensor t = Tensor::empty({3, stride}, values.dtype(), Device::cuda).narrow(-1, 8, cols);
    for (std::int64_t r = 0; r < 3; ++r) t.select(r).copy_from(values.select(r));
    return t;
  };
  const auto near = [&](const Tensor& t) {
    const Tensor copy = Tensor::empty({3, cols}, t.dtype(), Device::cpu);
    for (std::int64_t r = 0; r < 3; ++r) copy.select(r).copy_from(t.select(r));
    return copy;
  };
  const Tensor experts = Tensor::from<std::int32_t>({2, 0, 1}, {3, 1});
  const Tensor x = random_tensor({3, cols}, DType::bf16, 1), g = random_tensor({3, cols}, DType::bf16, 2),
               weights = random_tensor({3, 1}, DType::f32, 3);
  const Tensor y = Tensor::empty({3, cols}, DType::bf16, Device::cuda);
  const Permutation p = make_permutation(experts.to(Device::cuda), 3), q = make_permutation(experts, 3);
  const Tensor far_x = far(x), drows = far(x), dweights = Tensor::empty({3, 1}, DType::f32, Device::cuda);
  Context ctx;
  gather_rows(y, far_x, p);
  CHECK_BITS(y, permute(ctx, x, q).value());
  combine_rows({far_x, Into::set}, g.to(Device::cuda), weights.to(Device::cuda), p);
  CHECK_BITS(near(far_x), unpermute(ctx, g, weights, q).value());
  combine_rows_backward({drows, Into::set}, {dweights, Into::set}, far(g), far(x), weights.to(Device::cuda),
                        p);
  const Tensor want_rows = Tensor::empty({3, cols}, DType::bf16, Device::cpu),
               want_weights = Tensor::empty({3, 1}, DType::f32, Device::cpu);
  combine_rows_backward({want_rows, Into::set}, {want_weights, Into::set}, g, x, weights, q);
  CHECK_BITS(near(drows), want_rows);
  CHECK_CLOSE(dweights, want_weights, sum_tol(DType::f32, cols, 2));
}

TEST_CASE("permute, unpermute: bits do not depend on threads") {
  const int before = omp_get_max_threads();
  const Permutation p = make_permutation(random_choices(211, 3, 7), 7);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({211, 333}, dtype, 1), rows = random_tensor({633, 333}, dtype, 2);
    const Tensor weights = random_tensor({211, 3}, DType::f32, 3);
    omp_set_num_threads(1);
    const Combined one = run_unpermute(rows, weights, p, x);
    const Tensor dx = permute_grad(x, p, rows);
    omp_set_num_threads(3);
    const Combined three = run_unpermute(rows, weights, p, x);
    CHECK_BITS(three.y, one.y);
    CHECK_BITS(three.drows, one.drows);
    CHECK_BITS(three.dweights, one.dweights);
    CHECK_BITS(permute_grad(x, p, rows), dx);
  }
  omp_set_num_threads(before);
}

TEST_CASE("permute, unpermute: errors") {
  CHECK_THROWS_WITH_AS(make_permutation(Tensor::from<std::int32_t>({0, 1, 2, 5}, {2, 2}), 5),
                       "make_permutation: expert 5 of token 1, choice 1 is outside [0, 5)", Error);
  CHECK_THROWS_AS(make_permutation(Tensor::from<std::int32_t>({-1}, {1, 1}), 5), Error);
  CHECK_THROWS_AS(make_permutation(Tensor::from<std::int32_t>({0}, {1}), 5), Error);
  CHECK_THROWS_AS(make_permutation(Tensor::from<std::int64_t>({0}, {1, 1}), 5), Error);
  CHECK_THROWS_AS(make_permutation(Tensor::meta({1 << 16, 1 << 15}, DType::i32), 5), Error);
  CHECK_THROWS_AS(make_permutation(Tensor::from<std::int32_t>({0}, {1, 1}), -1), Error);

  for (const Range here : {Range{-1, 2}, {2, 1}, {0, 6}})
    CHECK_THROWS_AS(make_permutation(Tensor::from<std::int32_t>({0}, {1, 1}), 5, here), Error);
  CHECK_THROWS_WITH_AS(make_permutation(Tensor::from<std::int32_t>({0, 5}, {2, 1}), 5, {0, 2}),
                       "make_permutation: expert 5 of token 1, choice 0 is outside [0, 5)", Error);

  Context ctx;
  const Permutation p = make_permutation(random_choices(4, 2, 3), 3);
  CHECK_THROWS_AS(inverse(p), Error);
  CHECK_THROWS_AS(inverse(make_permutation(random_choices(40, 1, 3), 3, {0, 2})), Error);
  const Tensor x = Tensor::zeros({4, 5}, DType::f32, Device::cpu),
               rows = Tensor::zeros({8, 5}, DType::f32, Device::cpu),
               w = Tensor::zeros({4, 2}, DType::f32, Device::cpu);
  CHECK_THROWS_AS(permute(ctx, rows, p), Error);
  CHECK_THROWS_AS(permute(ctx, Tensor(), p), Error);
  CHECK_THROWS_AS(permute(ctx, Tensor::zeros({4, 5}, DType::i32, Device::cpu), p), Error);
  CHECK_THROWS_AS(permute(ctx, x, Permutation{}), Error);
  Permutation broken = p;
  broken.slot = Tensor::zeros({4, 2}, DType::i64, Device::cpu);
  CHECK_THROWS_AS(permute(ctx, x, broken), Error);
  broken = p;
  broken.source = Tensor::zeros({9}, DType::i32, Device::cpu);
  CHECK_THROWS_AS(permute(ctx, x, broken), Error);

  const Tensor ends = Tensor::from<std::int64_t>({2, 5, 1, 1}, {2, 2});
  CHECK_NOTHROW(merge_by_expert(ends, {0, 2}, 6));
  CHECK_THROWS_AS(merge_by_expert(ends, {0, 2}, 5), Error);
  CHECK_THROWS_AS(merge_by_expert(ends, {0, 3}, 6), Error);
  CHECK_THROWS_AS(merge_by_expert(ends, {2, 1}, 0), Error);
  CHECK_THROWS_AS(merge_by_expert(ends.reshape({4}), {0, 2}, 6), Error);
  CHECK_THROWS_AS(merge_by_expert(Tensor::from<std::int32_t>({2}, {1, 1}), {0, 1}, 2), Error);
  CHECK_THROWS_AS(merge_by_expert(Tensor::from<std::int64_t>({2, 1}, {1, 2}), {0, 2}, 1), Error);
  CHECK_THROWS_AS(unpermute(ctx, x, w, p), Error);
  CHECK_THROWS_AS(unpermute(ctx, rows, rows, p), Error);
  CHECK_THROWS_AS(unpermute(ctx, rows, w.to(DType::f64), p), Error);
  CHECK_THROWS_AS(unpermute(ctx, rows.to(DType::bf16), w.to(DType::bf16), p), Error);
}
