#include "ops/view/view.h"

#include <doctest/doctest.h>

#include <array>

#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
constexpr std::array<std::int64_t, 3> widths{2, 5, 1};
}

TEST_CASE("view: split_last gives windows of the same memory") {
  Context ctx;
  const Tensor x = random_tensor({3, 8}, DType::f32, 1);
  const auto parts = split_last(ctx, x, widths);
  REQUIRE(parts.size() == 3);
  std::int64_t start = 0;
  for (const Var& part : parts) {
    CHECK(part.value().same_storage(x));
    CHECK_BITS(part.value(), x.narrow(1, start, part.value().cols()));
    CHECK_FALSE(part.needs_grad());
    start += part.value().cols();
  }
  CHECK(start == 8);
}

TEST_CASE("view: split_last gradients against finite differences") {
  const DiffFn all = [](Context& ctx, const std::vector<Var>& in) { return split_last(ctx, in[0], widths); };
  CHECK_GRADIENTS(all, {random_tensor({4, 8}, DType::f64, 2)});
  const DiffFn used_twice = [](Context& ctx, const std::vector<Var>& in) {
    const auto parts = split_last(ctx, in[0], std::array<std::int64_t, 2>{4, 4});
    return std::vector<Var>{add(ctx, parts[0], parts[1]),
                            split_last(ctx, parts[1], std::array<std::int64_t, 2>{1, 3})[1]};
  };
  CHECK_GRADIENTS(used_twice, {random_tensor({3, 8}, DType::f64, 3)});
}

TEST_CASE("view: a part of split_last that nobody uses has gradient zero" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const Var x = Var::leaf(random_tensor({3, 8}, DType::f32, 4).to(device));
    // A gradient buffer that does not start as zeros, because memory of earlier tensors is used again.
    { random_tensor({3, 8}, DType::f32, 5).to(device).fill(77); }
    const auto parts = split_last(ctx, x, widths);
    tape.backward(parts[1], random_tensor({3, 5}, DType::f32, 6).to(device));
    Tensor want = Tensor::zeros({3, 8}, DType::f32, Device::cpu);
    want.narrow(1, 2, 5).copy_from(random_tensor({3, 5}, DType::f32, 6).to(device));
    CHECK_BITS(x.grad(), want);

    Tape unused;
    ctx.tape = &unused;
    const Var y = Var::leaf(random_tensor({3, 8}, DType::f32, 7).to(device));
    const auto none = split_last(ctx, y, widths);
    const Var other = Var::leaf(random_tensor({1, 1}, DType::f32, 8).to(device));
    unused.backward(add(ctx, other, other), random_tensor({1, 1}, DType::f32, 9).to(device));
    CHECK_FALSE(y.node()->filled());
  }
}

TEST_CASE("view: reshape keeps values and gradients in order") {
  Context ctx;
  const Tensor x = random_tensor({4, 6}, DType::f32, 10);
  CHECK(reshape(ctx, x, {2, 2, 6}).value().to_vector() == x.to_vector());
  const DiffFn fn = [](Context& c, const std::vector<Var>& in) {
    return std::vector<Var>{reshape(c, reshape(c, in[0], {3, 8}), {-1, 2})};
  };
  CHECK_GRADIENTS(fn, {random_tensor({4, 6}, DType::f64, 11)});
  // Reshape of a window: its rows are not adjacent in memory.
  const DiffFn window = [](Context& c, const std::vector<Var>& in) {
    const auto parts = split_last(c, in[0], std::array<std::int64_t, 2>{6, 2});
    return std::vector<Var>{reshape(c, parts[0], {2, 2, 6}), parts[1]};
  };
  CHECK_GRADIENTS(window, {random_tensor({4, 8}, DType::f64, 12)});
}

TEST_CASE("view: add gradients against finite differences") {
  const DiffFn fn = [](Context& ctx, const std::vector<Var>& in) {
    return std::vector<Var>{add(ctx, in[0], in[1])};
  };
  CHECK_GRADIENTS(fn, {random_tensor({3, 7}, DType::f64, 13), random_tensor({3, 7}, DType::f64, 14)});
  const DiffFn same = [](Context& ctx, const std::vector<Var>& in) {
    return std::vector<Var>{add(ctx, add(ctx, in[0], in[0]), in[0])};
  };
  CHECK_GRADIENTS(same, {random_tensor({3, 7}, DType::f64, 15)});
  GradCheckOptions one;
  one.wants = {false, true};
  CHECK_GRADIENTS(fn, {random_tensor({3, 7}, DType::f64, 16), random_tensor({3, 7}, DType::f64, 17)}, one);
}

TEST_CASE("view: add of windows and of empty tensors" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    Context ctx;
    const Tensor wide = random_tensor({500, 90}, DType::f32, 18).to(device);
    const Tensor a = wide.narrow(1, 3, 40), b = wide.narrow(1, 50, 40);
    const Tensor y = add(ctx, a, b).value();
    const auto p = a.to_vector(), q = b.to_vector();
    std::vector<float> want;
    for (std::size_t i = 0; i < p.size(); ++i)
      want.push_back(static_cast<float>(p[i]) + static_cast<float>(q[i]));
    CHECK_BITS(y, Tensor::from(want, {500, 40}));
    const Tensor none = Tensor::empty({0, 4}, DType::f32, device);
    CHECK(add(ctx, none, none).value().numel() == 0);
  }
}

TEST_CASE("view: bf16 sums are formed in f32 and rounded once, ties to even") {
  Context ctx;
  const auto sum = [&](float a, float b) {
    const Tensor y = add(ctx, Tensor::from(std::vector<bf16>{bf16(a)}, {1, 1}),
                         Tensor::from(std::vector<bf16>{bf16(b)}, {1, 1}))
                         .value();
    CHECK(y.dtype() == DType::bf16);
    return y.to_vector()[0];
  };
  // Neighbours of 1 are 2^-7 apart.
  CHECK(sum(1.0F, 0x1p-8F) == 1.0);
  CHECK(sum(1.0F + 0x1p-7F, 0x1p-8F) == 1.0 + 0x1p-6);
  CHECK(sum(1.0F, 0x1.02p-8F) == 1.0 + 0x1p-7);
  CHECK(sum(1.0F, -1.0F) == 0);
}

TEST_CASE("view: errors") {
  Context ctx;
  const Tensor x = random_tensor({3, 8}, DType::f32, 19);
  CHECK_THROWS(split_last(ctx, x, std::array<std::int64_t, 2>{4, 5}));
  CHECK_THROWS(split_last(ctx, x, std::array<std::int64_t, 2>{4, 3}));
  CHECK_THROWS(reshape(ctx, x, {5, 5}));
  CHECK_THROWS_WITH_AS(add(ctx, x, random_tensor({3, 7}, DType::f32, 20)), doctest::Contains("[3, 8]"),
                       Error);
  CHECK_THROWS_WITH_AS(add(ctx, x, random_tensor({3, 8}, DType::f64, 20)), doctest::Contains("f32"), Error);
}

TEST_CASE("view: concat_last puts columns side by side, on every device" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices(), [](Device device, DType dtype) {
    Context ctx;
    const Tensor a = random_tensor({5, 3}, dtype, 3), b = random_tensor({5, 4}, dtype, 4);
    const Tensor both = concat_last(ctx, a.to(device), b.to(device)).value().to(Device::cpu);
    REQUIRE(both.shape() == Shape{5, 7});
    CHECK_BITS(both.narrow(1, 0, 3).clone(), a);
    CHECK_BITS(both.narrow(1, 3, 4).clone(), b);
  });
  Context ctx;
  CHECK_THROWS_AS(
      concat_last(ctx, random_tensor({5, 3}, DType::f32, 3), random_tensor({4, 3}, DType::f32, 3)), Error);
}

TEST_CASE("view: concat_last gradients against finite differences") {
  const DiffFn both = [](Context& ctx, const std::vector<Var>& in) {
    return std::vector<Var>{concat_last(ctx, in[0], in[1])};
  };
  CHECK_GRADIENTS(both, {random_tensor({4, 3}, DType::f64, 5), random_tensor({4, 2}, DType::f64, 6)});
  const DiffFn one_twice = [](Context& ctx, const std::vector<Var>& in) {
    return std::vector<Var>{concat_last(ctx, in[0], in[0])};
  };
  CHECK_GRADIENTS(one_twice, {random_tensor({4, 3}, DType::f64, 7)});
}
