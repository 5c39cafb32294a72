#include "ops/deal_columns/deal_columns.h"

#include <doctest/doctest.h>

#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Columns 2 and 3 of matrix 0 go to both ranks, column 4 to none.
const ColumnDeal shared{{{0, {0, 1}}, {0, {2, 4}}, {1, {0, 2}}}, {{0, {1, 2}}, {0, {2, 4}}, {1, {2, 4}}}};

}  // namespace

TEST_CASE("deal_columns: values, gradients, columns that several ranks or none get") {
  const Tensor a = random_tensor({3, 5}, DType::f64, 1), b = random_tensor({3, 4}, DType::f64, 2);
  Context silent;
  const Tensor y = deal_columns(silent, {a, b}, shared).value();
  CHECK(y.shape() == Shape{6, 5});
  const auto from_a = a.to_vector(), from_b = b.to_vector(), got = y.to_vector();
  for (std::size_t t = 0; t < 3; ++t) {
    const std::vector<double> first{from_a[5 * t], from_a[5 * t + 2], from_a[5 * t + 3], from_b[4 * t],
                                    from_b[4 * t + 1]},
        second{from_a[5 * t + 1], from_a[5 * t + 2], from_a[5 * t + 3], from_b[4 * t + 2], from_b[4 * t + 3]};
    CHECK(std::equal(first.begin(), first.end(), got.begin() + static_cast<std::ptrdiff_t>(5 * t)));
    CHECK(std::equal(second.begin(), second.end(), got.begin() + static_cast<std::ptrdiff_t>(5 * (t + 3))));
  }
  for (const std::vector<bool>& wants : {std::vector<bool>{}, {true, false}, {false, true}}) {
    GradCheckOptions options;
    options.wants = wants;
    CHECK_GRADIENTS(
        [](Context& ctx, const std::vector<Var>& in) {
          return std::vector{deal_columns(ctx, {in[0], in[1]}, shared)};
        },
        {a, b}, options);
  }
}

// Both directions, sums that several ranks share, and windows of wider tensors.
TEST_CASE("deal_columns: every device has the bits of the CPU" * doctest::test_suite("cuda")) {
  const auto results = [](Device device, DType dtype, std::int64_t rows) {
    const Tensor wide = random_tensor({rows, 11}, dtype, 5).to(device),
                 dy = random_tensor({2 * rows, 5}, dtype, 6).to(device);
    Tape tape;
    Context ctx{.tape = &tape};
    const auto node = [&](const Tensor& t) {
      return std::make_shared<GradNode>(t.shape(), dtype, device, false);
    };
    const Tensor values[] = {wide.narrow(1, 1, 5), wide.narrow(1, 6, 4)};
    const Var a(values[0], node(values[0])), b(values[1], node(values[1]));
    const Var y = deal_columns(ctx, {a, b}, shared);
    tape.backward(y, dy);
    Context silent;
    return std::vector{y.value(), a.node()->grad(), b.node()->grad(),
                       collect_columns(silent, dy, 5, {{{0, {0, 5}}}, {{0, {0, 5}}}}).value()};
  };
  for_dtypes(test_devices("deal_columns"), [&](Device device, DType dtype) {
    for (const std::int64_t rows : {0, 1, 70}) {
      CAPTURE(rows);
      const auto got = results(device, dtype, rows), want = results(Device::cpu, dtype, rows);
      for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i].clone(), want[i].clone());
    }
  });
}

TEST_CASE("deal_columns: parts of one projection; sums of bf16 are rounded once") {
  const Tensor whole = random_tensor({4, 9}, DType::bf16, 3), dy = random_tensor({8, 5}, DType::bf16, 4);
  const Var x(whole, std::make_shared<GradNode>(whole.shape(), DType::bf16, Device::cpu, false));
  Tape tape;
  Context ctx{.tape = &tape};
  const auto parts = split_last(ctx, x, std::vector<std::int64_t>{5, 4});
  tape.backward(deal_columns(ctx, {parts[0], parts[1]}, shared), dy);
  const auto dx = x.node()->grad().to_vector(), g = dy.to_vector();
  for (std::size_t t = 0; t < 4; ++t) {
    const auto sum = bf16(static_cast<float>(g[5 * t + 1]) + static_cast<float>(g[5 * (t + 4) + 1]));
    CHECK(dx[9 * t + 2] == static_cast<double>(sum));
    CHECK(dx[9 * t + 4] == 0);
    CHECK(dx[9 * t + 8] == g[5 * (t + 4) + 4]);
  }
}

TEST_CASE("collect_columns: undoes a deal, values and gradients") {
  const ColumnDeal halves{{{0, {0, 3}}}, {{0, {3, 6}}}};
  for (const std::int64_t rows : {0, 1, 5}) {
    const Tensor x = random_tensor({rows, 6}, DType::f64, 1);
    Context silent;
    const Var y = deal_columns(silent, {x}, halves);
    CHECK_BITS(collect_columns(silent, y, 6, halves).value(), x);
    CHECK_GRADIENTS(
        [&](Context& ctx, const std::vector<Var>& in) {
          return std::vector{collect_columns(ctx, in[0], 6, halves)};
        },
        {y.value()});
  }
  CHECK_THROWS_AS(deal_columns(*std::make_unique<Context>(), {random_tensor({1, 6}, DType::f32, 1)},
                               {{{0, {0, 3}}}, {{0, {3, 5}}}}),
                  std::logic_error);
}
