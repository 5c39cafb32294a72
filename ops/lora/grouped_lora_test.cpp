#include <doctest/doctest.h>

#include <algorithm>

#include "core/host_wait.h"
#include "core/variants.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/lora/lora.h"
#include "ops/lora/test_reference.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Offsets = std::vector<std::int64_t>;

Tensor tensor_of(const Offsets& offsets, Device device = Device::cpu) {
  return Tensor::from(offsets, {std::ssize(offsets)}).to(device);
}

Tensor f64(const Shape& shape, std::uint64_t seed) { return random_tensor(shape, DType::f64, seed); }

Var intermediate(const Tensor& t) {
  return {t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false)};
}

/// grouped_linear() with a branch, of {x, weight, a, b}.
DiffFn adapted(const Offsets& offsets) {
  return [offsets](Context& ctx, const std::vector<Var>& v) {
    const Tensor at = tensor_of(offsets);
    return std::vector<Var>{
        add_grouped_lora(ctx, grouped_linear(ctx, v[0], at, v[1]), v[0], at, v[2], v[3], 1.25)};
  };
}

struct Sizes {
  Offsets offsets;
  std::int64_t in, rank, out;
};

/// `products`: by a product for each group. `spare`: rows beyond the last group, on CUDA.
void check_against_reference(Device device, DType dtype, const Sizes& sizes, bool products,
                             std::int64_t spare) {
  const auto& [offsets, in, rank, out] = sizes;
  CAPTURE(in);
  CAPTURE(out);
  CAPTURE(products);
  const std::int64_t experts = std::ssize(offsets) - 1, used = offsets.back(), rows = used + spare;
  const Tensor y = random_tensor({rows, out}, dtype, 1), x = random_tensor({rows, in + 3}, dtype, 2),
               a = random_tensor({experts, rank, in}, dtype, 3),
               b = random_tensor({experts, out, rank}, dtype, 4), g = random_tensor({rows, out}, dtype, 5);
  KernelChoice choice;
  if (products) choice.by_op = {{"grouped_linear", "products"}};
  const Var vx = intermediate(x.to(device).narrow(-1, 1, in)), va = Var::leaf(a.to(device)),
            vb = Var::leaf(b.to(device));
  const Tensor own_offsets = tensor_of(offsets, device), on_host = products ? tensor_of(offsets) : Tensor();
  for (int pass = 1; pass <= 2; ++pass) {  // Into::set, then Into::add
    Tape tape;
    Context ctx{.tape = &tape, .kernels = &choice};
    const Var before = intermediate(y.to(device).clone());
    reset_host_waits();
    const Var result = add_grouped_lora(ctx, before, vx, own_offsets, va, vb, 0.8, on_host);
    tape.backward(result, g.to(device));
    CHECK(host_waits().empty());
    CHECK(result.node() == before.node());
    CHECK(result.value().same_storage(before.value()));
    CHECK_BITS(result.node()->take(), g);
    CHECK_BITS(result.value().narrow(0, used, spare), y.narrow(0, used, spare));
    const Tensor dx = vx.node()->take();
    for (std::int64_t e = 0; e < experts; ++e) {
      CAPTURE(e);
      const std::int64_t first = offsets[static_cast<std::size_t>(e)],
                         count = offsets[static_cast<std::size_t>(e) + 1] - first;
      const LoraOperands o{.y = y.narrow(0, first, count),
                           .x = x.narrow(0, first, count).narrow(-1, 1, in),
                           .a = a.select(e),
                           .b = b.select(e),
                           .g = g.narrow(0, first, count),
                           .scale = 0.8};
      const LoraResult want = lora_reference(o), magnitude = lora_magnitudes(o);
      CHECK_WITHIN(result.value().narrow(0, first, count), want.y, magnitude.y,
                   lora_roundings(dtype, in + rank));
      CHECK_WITHIN(dx.narrow(0, first, count), want.dx, magnitude.dx, lora_roundings(dtype, out + rank));
      const auto times = [&](const Tensor& t) {
        auto values = t.to_vector();
        for (double& v : values) v *= pass;
        return Tensor::from(values, t.shape());
      };
      CHECK_WITHIN(va.grad().select(e), times(want.da), times(magnitude.da),
                   lora_roundings(dtype, out + 2 * count));
      CHECK_WITHIN(vb.grad().select(e), times(want.db), times(magnitude.db),
                   lora_roundings(dtype, in + 2 * count));
    }
  }
}

}  // namespace

TEST_CASE("grouped lora: against finite differences") {
  const auto operands = [](std::int64_t rows, std::int64_t experts) {
    return std::vector<Tensor>{f64({rows, 3}, 1), f64({experts, 4, 3}, 2), f64({experts, 2, 3}, 3),
                               f64({experts, 4, 2}, 4)};
  };
  CHECK_GRADIENTS(adapted({0, 2, 2, 5, 6}), operands(6, 4));
  CHECK_GRADIENTS(adapted({0, 0}), operands(0, 1));
  CHECK_GRADIENTS(adapted({0, 1, 4}),
                  {f64({4, 5}, 1).narrow(-1, 1, 3), f64({2, 4, 3}, 2), f64({2, 2, 3}, 3), f64({2, 4, 2}, 4)});
  GradCheckOptions options;
  for (int wanted = 1; wanted < 16; ++wanted) {
    CAPTURE(wanted);
    options.wants = {(wanted & 1) != 0, (wanted & 2) != 0, (wanted & 4) != 0, (wanted & 8) != 0};
    CHECK_GRADIENTS(adapted({0, 1, 3}), operands(3, 2), options);
  }
}

TEST_CASE("grouped lora: against f64, group by group" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("lora"), [](Device device, DType dtype) {
    for (const bool products : {false, true})
      for (const std::int64_t spare : {0, 5}) {
        if (spare > 0 && !device.is_cuda()) continue;  // on the CPU the groups have all rows
        check_against_reference(device, dtype, {{0, 5, 5, 17, 18, 40}, 31, 5, 13}, products, spare);
        check_against_reference(device, dtype, {{0, 3, 50}, 24, 8, 16}, products, spare);
        check_against_reference(device, dtype, {{0, 0, 0}, 7, 2, 5}, products, spare);
        check_against_reference(device, dtype, {{0, 3, 6}, 0, 2, 4}, products, spare);
        check_against_reference(device, dtype, {{0, 3, 6}, 4, 0, 4}, products, spare);
        check_against_reference(device, dtype, {{0, 3, 6}, 4, 2, 0}, products, spare);
      }
  });
}

TEST_CASE("grouped lora: weight work later, adapters of f32 for x of bf16" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("lora")) {
    const Tensor offsets = tensor_of({0, 4, 4, 9}, device),
                 x = random_tensor({9, 16}, DType::bf16, 1).to(device),
                 g = random_tensor({9, 8}, DType::bf16, 2).to(device),
                 a = random_tensor({3, 8, 16}, DType::f32, 3).to(device),
                 b = random_tensor({3, 8, 8}, DType::f32, 4).to(device);
    const auto run = [&](bool deferred, DType dtype) {
      Tape tape;
      if (deferred) tape.defer_weight_work();
      Context ctx{.tape = &tape};
      const Var vx = intermediate(x), va = Var::leaf(a.to(dtype)), vb = Var::leaf(b.to(dtype));
      const Var result =
          add_grouped_lora(ctx, Tensor::zeros({9, 8}, DType::bf16, device), vx, offsets, va, vb, 2);
      tape.backward(result, g);
      CHECK(vx.node()->filled());
      CHECK(va.node()->filled() != deferred);
      CHECK(vb.node()->filled() != deferred);
      tape.run_weight_work();
      return std::vector<Tensor>{result.value(), vx.node()->take(), va.grad(), vb.grad()};
    };
    const auto want = run(false, DType::bf16);
    for (const auto& got : {run(true, DType::bf16), run(false, DType::f32)})
      for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i], want[i]);
    CHECK_BITS(want[2].select(1), Tensor::zeros({8, 16}, DType::f32, Device::cpu));
  }
}

TEST_CASE("grouped lora: errors") {
  Context ctx;
  const auto zeros = [](const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu) {
    return Tensor::zeros(shape, dtype, device);
  };
  const Tensor x = zeros({3, 5}), y = zeros({3, 4}), a = zeros({2, 6, 5}), b = zeros({2, 4, 6}),
               offsets = tensor_of({0, 1, 3});
  const auto message = [&](const Var& own_y, const Tensor& own_x, const Tensor& own_offsets,
                           const Tensor& own_a, const Tensor& own_b) {
    return message_of([&] { add_grouped_lora(ctx, own_y, own_x, own_offsets, own_a, own_b, 1); });
  };
  CHECK(message(y, x, offsets, a, b) == "no error");
  CHECK(message(y, zeros({1, 3, 5}), offsets, a, b) ==
        "add_grouped_lora: x: want shape [rows, in], got [1, 3, 5]");
  CHECK(message(y, zeros({3, 5}, DType::i64), offsets, a, b) ==
        "add_grouped_lora: x: want f32, f64 or bf16, got i64");
  CHECK(message(y, x, offsets, zeros({6, 5}), b) ==
        "add_grouped_lora: a: want 3 dimensions and 5 columns, got shape [6, 5]");
  CHECK(message(y, x, offsets, a, zeros({2, 4, 5})) ==
        "add_grouped_lora: b: want 3 dimensions and 6 columns, got shape [2, 4, 5]");
  CHECK(message(y, x, offsets, a, zeros({3, 4, 6})) ==
        "add_grouped_lora: b: want shape [2, 4, 6], got [3, 4, 6]");
  CHECK(message(y, x, offsets, a, zeros({2, 4, 6}, DType::f64)) == "add_grouped_lora: b: want f32, got f64");
  CHECK(message(zeros({2, 4}), x, offsets, a, b) == "add_grouped_lora: y: want shape [3, 4], got [2, 4]");
  CHECK(message(y, x, offsets.to(Device::guard), a, b) ==
        "add_grouped_lora: offsets: want a tensor on cpu like x, got one on guard");
  CHECK(message(y, x, {}, a, b) == "add_grouped_lora: offsets: got no tensor");
  CHECK(message(y, x, tensor_of({0, 3}), a, b) == "grouped_linear: offsets: want shape [3], got [2]");
  CHECK(message(y, x, tensor_of({0, 2, 2}), a, b).find("want values ascending from 0 to 3") !=
        std::string::npos);
  const Var leaf = Var::leaf(y);
  CHECK_THROWS_AS(add_grouped_lora(ctx, leaf, x, offsets, a, b, 1), std::logic_error);
}
