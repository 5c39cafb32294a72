#include "ops/view/flat.h"

#include <doctest/doctest.h>

#include <array>

#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
const std::array<Shape, 3> shapes{Shape{2, 3}, Shape{0, 4}, Shape{5, 1}};
}

TEST_CASE("flat: pack lays tensors one after another, and unpack gives views of them" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    Context ctx;
    const Tensor wide = random_tensor({2, 7}, DType::f32, 1).to(device),
                 b = random_tensor({5, 1}, DType::f32, 2).to(device);
    const Tensor a = wide.narrow(1, 2, 3);  // strided rows
    const std::array<Var, 3> tensors{Var(a), Var(Tensor::empty({0, 4}, DType::f32, device)), Var(b)};
    const Var flat = pack(ctx, tensors);
    CHECK(flat.shape() == Shape{11});
    CHECK_FALSE(flat.needs_grad());
    const std::vector<Var> parts = unpack(ctx, flat, shapes);
    REQUIRE(parts.size() == 3);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      CHECK(parts[i].value().same_storage(flat.value()));
      CHECK(parts[i].shape() == tensors[i].shape());
    }
    CHECK_BITS(parts[0].value(), a);
    CHECK_BITS(parts[2].value(), b);
  }
}

TEST_CASE("flat: gradients against finite differences, also of tensors that nobody uses") {
  const DiffFn both = [](Context& ctx, const std::vector<Var>& in) {
    const Var flat = pack(ctx, in);
    const std::vector<Var> parts = unpack(ctx, flat, shapes);
    return std::vector{add(ctx, parts[0], in[0]), parts[2]};
  };
  const auto tensor = [](std::size_t i) { return random_tensor(shapes[i], DType::f64, i + 3); };
  CHECK_GRADIENTS(both, {tensor(0), tensor(1), tensor(2)});
  const DiffFn first = [](Context& ctx, const std::vector<Var>& in) {
    return std::vector{unpack(ctx, in[0], shapes).front()};
  };
  CHECK_GRADIENTS(first, {random_tensor({11}, DType::f64, 7)});
}

TEST_CASE("flat: what cannot be packed or unpacked is refused") {
  Context ctx;
  const Var a = random_tensor({3}, DType::f32, 1), b = random_tensor({3}, DType::f64, 2);
  CHECK_THROWS_AS((void)pack(ctx, {}), Error);
  const std::array two{a, b};
  CHECK_THROWS_AS((void)pack(ctx, two), Error);
  CHECK_THROWS_AS((void)unpack(ctx, a, shapes), Error);
}
