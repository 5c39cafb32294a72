#include "ops/select_rows/select_rows.h"

#include <doctest/doctest.h>

#include "ops/linear/linear.h"
#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const std::vector<Range> ranges{{1, 3}, {3, 3}, {5, 6}};

}  // namespace

TEST_CASE("select_rows: values and gradients, leaves and intermediates") {
  for (const Shape& shape : {Shape{7}, Shape{7, 4}, Shape{7, 1, 3}}) {
    const Tensor x = random_tensor(shape, DType::f64, 1);
    Context silent;
    const Tensor y = select_rows(silent, x, ranges).value();
    CHECK(y.dim(0) == 3);
    CHECK_BITS(y.narrow(0, 0, 2), x.narrow(0, 1, 2));
    CHECK_BITS(y.narrow(0, 2, 1), x.narrow(0, 5, 1));
    CHECK_GRADIENTS(
        [&](Context& ctx, const std::vector<Var>& in) {
          // The sum is no leaf, the two selections of `in` are two contributions to one.
          const Var sum =
              add(ctx, select_rows(ctx, in[0], ranges), select_rows(ctx, in[0], std::vector{Range{0, 3}}));
          return std::vector<Var>{select_rows(ctx, sum, std::vector{Range{1, 3}}), sum};
        },
        {x});
  }
  Context silent;
  CHECK(select_rows(silent, random_tensor({4, 2}, DType::f32, 1), {}).value().shape() == Shape{0, 2});
}

TEST_CASE("select_rows: values and gradients on every device" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    for (const Shape& shape : {Shape{7}, Shape{7, 4}, Shape{7, 1, 3}})
      for (const bool leaf : {true, false}) {
        CAPTURE(leaf);
        const Tensor x = random_tensor(shape, dtype, 1);
        Shape selected = shape;
        selected[0] = 3;
        const DType stored = leaf ? accumulate_dtype(dtype) : dtype;
        const Tensor dy = random_tensor(selected, dtype, 2);
        const auto run = [&](Device on) {
          const Var in(x.to(on), std::make_shared<GradNode>(shape, dtype, on, leaf));
          Tape tape;
          Context ctx{.tape = &tape};
          const Var y = select_rows(ctx, in, ranges);
          tape.backward(y, dy.to(on));
          return std::vector{y.value(), in.node()->grad()};
        };
        const auto got = run(device);
        CHECK_BITS(got[0].narrow(0, 0, 2), x.narrow(0, 1, 2));
        CHECK_BITS(got[0].narrow(0, 2, 1), x.narrow(0, 5, 1));
        CHECK(got[1].dtype() == stored);
        CHECK_BITS(got[1].narrow(0, 1, 2), dy.narrow(0, 0, 2).to(stored));
        CHECK_BITS(got[1].narrow(0, 5, 1), dy.narrow(0, 2, 1).to(stored));
        CHECK_BITS(got[1], run(Device::cpu)[1]);
      }
  });
}

TEST_CASE("select_rows: the gradient of a bf16 parameter keeps its accumulation dtype") {
  const Tensor weight = random_tensor({7, 5}, DType::bf16, 1), x = random_tensor({50, 5}, DType::bf16, 2),
               dy = random_tensor({50, 3}, DType::bf16, 3);
  const auto gradient = [&](const Tensor& w, bool select, bool deferred) {
    const Var leaf = Var::leaf(w);
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      Tape tape;
      if (deferred) tape.defer_weight_work();
      Context ctx{.tape = &tape};
      const Var part = select ? select_rows(ctx, leaf, ranges) : leaf;
      tape.backward(linear(ctx, x, part, Var()), dy);
      if (deferred) CHECK(leaf.node()->filled() == (microbatch > 0));
      tape.run_weight_work();
    }
    CHECK(leaf.grad().dtype() == DType::f32);
    return leaf.grad();
  };
  Context silent;
  const Tensor want = gradient(select_rows(silent, weight, ranges).value(), false, false);
  for (const bool deferred : {false, true}) {
    const Tensor got = gradient(weight, true, deferred);
    CHECK(relative_error(select_rows(silent, got, ranges).value(), want) < 1e-6);
    for (const std::int64_t row : {0, 3, 4, 6})
      for (const double v : got.narrow(0, row, 1).to_vector()) CHECK(v == 0);
  }
}

TEST_CASE("select_rows: ranges that do not fit") {
  const Tensor x = random_tensor({4, 2}, DType::f32, 1);
  Context ctx;
  for (const auto& wrong : {std::vector{Range{0, 5}}, std::vector{Range{-1, 2}}, std::vector{Range{2, 1}},
                            std::vector{Range{1, 3}, Range{2, 4}}})
    CHECK_THROWS_AS(select_rows(ctx, x, wrong), std::logic_error);
}
