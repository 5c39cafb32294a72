#include <doctest/doctest.h>

#include <functional>

#include "core/allocator.h"
#include "ops/gated_activation/gated_activation.h"
#include "ops/layernorm/layernorm.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

// Results that operations compute again in backward (GradNode::again).

namespace {

struct Operands {
  Var x, other, weight, bias;
};

struct Case {
  const char* name;
  std::function<Var(Context&, const Operands&)> run;
  bool once;  // the second wish gets the tensor of the first
};

const std::vector<Case> cases{
    {"rmsnorm", [](Context& ctx, const Operands& o) { return rmsnorm(ctx, o.x, o.weight, 1e-5, 1); }, true},
    {"residual_rmsnorm",
     [](Context& ctx, const Operands& o) {
       return residual_rmsnorm(ctx, o.x, o.other, o.weight, 1e-5).normed;
     },
     true},
    {"layernorm", [](Context& ctx, const Operands& o) { return layernorm(ctx, o.x, o.weight, o.bias, 1e-5); },
     true},
    {"residual_layernorm",
     [](Context& ctx, const Operands& o) {
       return residual_layernorm(ctx, o.x, o.other, o.weight, {}, 1e-5).normed;
     },
     true},
    {"gated_activation",
     [](Context& ctx, const Operands& o) {
       return gated_activation(ctx, o.x, o.other, GateActivation::silu);
     },
     false},
};

Var leaf(const Shape& shape, DType dtype, Device device, std::uint64_t seed) {
  return Var::leaf(random_tensor(shape, dtype, seed).to(device));
}

Operands operands(DType dtype, Device device) {
  return {leaf({9, 24}, dtype, device, 1), leaf({9, 24}, dtype, device, 2), leaf({24}, dtype, device, 3),
          leaf({24}, dtype, device, 4)};
}

}  // namespace

TEST_CASE("computed again: results have the same bits, until the closure of their operation runs" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const Case& c : cases) {
      CAPTURE(c.name);
      Tape tape;
      Context ctx{.tape = &tape};
      const Operands o = operands(dtype, device);
      const Var y = c.run(ctx, o);
      REQUIRE(y.node()->again);
      const Tensor first = y.node()->again(), second = y.node()->again();
      CHECK_BITS(first, y.value());
      CHECK((first.storage() == second.storage()) == c.once);
      CHECK(first.storage() != y.value().storage());
      tape.backward(y, random_tensor({9, 24}, dtype, 5).to(device));
      CHECK_FALSE(y.node()->again);
      Context none;
      CHECK_FALSE(c.run(none, o).needs_grad());
    }
  });
}

TEST_CASE("computed again: layers behind keep nothing of the rows, and their gradients have the same bits") {
  for (const Case& c : cases)
    for (const bool adapted : {false, true}) {
      CAPTURE(c.name);
      CAPTURE(adapted);
      const DType dtype = DType::f32;
      const auto run = [&](bool again) {
        const Operands o = operands(dtype, Device::cpu);
        const Var weight = leaf({7, 24}, dtype, Device::cpu, 6), a = leaf({2, 24}, dtype, Device::cpu, 7),
                  b = leaf({7, 2}, dtype, Device::cpu, 8);
        Tape tape;
        Context ctx{.tape = &tape};
        Var y = c.run(ctx, o);
        if (!again) y.node()->again = {};
        const Storage* const rows = y.value().storage().get();
        const std::weak_ptr<Storage> watched = y.value().storage();
        CHECK(rows != nullptr);
        Var z = linear(ctx, y, weight);
        if (adapted) z = add_lora(ctx, z, y, {a, b, 0.5, {}});
        y = {};
        CHECK(watched.expired() == again);
        tape.backward(z, random_tensor({9, 7}, dtype, 9));
        std::vector<Tensor> gradients{o.x.grad(), weight.grad()};
        if (adapted) gradients.insert(gradients.end(), {a.grad(), b.grad()});
        return gradients;
      };
      const auto got = run(true), want = run(false);
      for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i], want[i]);
    }
}

TEST_CASE("computed again: the input of an activation checkpoint") {
  const Operands o = operands(DType::f64, Device::cpu);
  const auto run = [&](bool again) {
    o.x.node()->clear();
    Tape tape;
    Context ctx{.tape = &tape};
    Var y = rmsnorm(ctx, o.x, Var(o.weight.value()), 1e-5);
    if (!again) y.node()->again = {};
    const std::weak_ptr<Storage> watched = y.value().storage();
    const Var z = checkpoint(
        ctx, "block",
        [&](Context& c, const Var& in) {
          return gated_activation(c, in, Var(o.other.value()), GateActivation::silu);
        },
        y);
    y = {};
    CHECK(watched.expired() == again);
    tape.backward(z, random_tensor({9, 24}, DType::f64, 5));
    return o.x.grad().clone();
  };
  const Tensor got = run(true), want = run(false);
  CHECK_BITS(got, want);
}
