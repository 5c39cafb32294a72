#include <doctest/doctest.h>

#include "ops/gated_rmsnorm/gated_rmsnorm.h"
#include "ops/test_ranks.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

// Norm groups that span ranks, against the same operation on whole groups.

namespace {

struct Operands {
  Tensor y, z, weight, dout;
};

/// The share of one rank of x [rows, channels]: `share` channels of each group.
Tensor share_of(const Tensor& x, std::int64_t groups, std::int64_t ranks, std::size_t rank) {
  const std::int64_t width = x.cols() / groups, share = width / ranks;
  const Tensor own = Tensor::empty({x.rows(), groups * share}, x.dtype(), x.device());
  for (std::int64_t group = 0; group < groups; ++group)
    own.narrow(-1, group * share, share)
        .copy_from(x.narrow(-1, group * width + static_cast<std::int64_t>(rank) * share, share));
  return own;
}

/// out, and the gradients of y, z and weight, each with one row for a token and weight with one row.
std::vector<Tensor> run(const Operands& o, std::int64_t groups, const NormGroupPart& part = {},
                        GateOrder order = GateOrder::gate_first) {
  Tape tape;
  Context ctx{.tape = &tape};
  const Var y = Var::leaf(o.y), z = Var::leaf(o.z), weight = Var::leaf(o.weight);
  const Var out = gated_rmsnorm(ctx, y, z, weight, groups, 1e-3, part, order);
  tape.backward(out, o.dout);
  return {out.value(), y.grad(), z.grad(), weight.grad().reshape({1, weight.shape()[0]})};
}

}  // namespace

TEST_CASE("gated_rmsnorm, groups over ranks: output and gradients of the whole, two messages" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("gated_rmsnorm"), [](Device device, DType dtype) {
    using Sizes = std::vector<std::int64_t>;
    const bool on_cpu = device == Device::cpu;
    for (const std::int64_t ranks : on_cpu ? Sizes{1, 2, 5} : Sizes{1, 3})
      for (const std::int64_t groups : {1, 3})
        for (const std::int64_t share : on_cpu ? Sizes{1, 16, 37} : Sizes{16, 37})
          for (const std::int64_t tokens :
               on_cpu ? Sizes{0, 1, 67} : Sizes{0, 67}) {  // 67: more than a segment
            CAPTURE(ranks);
            CAPTURE(groups);
            CAPTURE(share);
            CAPTURE(tokens);
            const std::int64_t channels = groups * ranks * share;
            const auto random = [&](const Shape& shape, std::uint64_t seed, double scale = 1) {
              return random_tensor(shape, dtype, seed, scale).to(device);
            };
            const Operands whole{random({tokens, channels}, 1), random({tokens, channels}, 2, 2.0),
                                 random({channels}, 3), random({tokens, channels}, 4)};
            const std::vector<Tensor> want = run(whole, groups);
            on_ranks(static_cast<std::size_t>(ranks), [&](std::size_t rank, ThreadReduction& reduction) {
              const auto own = [&](const Tensor& x) { return share_of(x, groups, ranks, rank); };
              const Operands mine{own(whole.y), own(whole.z),
                                  own(whole.weight.reshape({1, channels})).reshape({groups * share}),
                                  own(whole.dout)};
              const std::vector<Tensor> got = run(mine, groups, {&reduction, ranks});
              // u - g r mean(u g r) cancels in narrow groups: 64 roundings. bf16 is rounded once, at the end.
              const double bound = dtype == DType::f64 ? 0x1p-47 : dtype == DType::f32 ? 0x1p-18 : 0x1p-8;
              for (std::size_t i = 0; i < want.size(); ++i) {
                CAPTURE(i);
                CHECK(relative_error(got[i], own(want[i])) < bound);
              }
              const Shape message{tokens, groups};
              CHECK(reduction.messages ==
                    (tokens > 0 ? std::vector<Shape>{message, message} : std::vector<Shape>{}));
            });
          }
  });
}

TEST_CASE("gated_rmsnorm, groups over ranks: the norm first, with a weight for each group or one for all" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("gated_rmsnorm"), [](Device device, DType dtype) {
    for (const bool shared : {false, true}) {
      CAPTURE(shared);
      const std::int64_t ranks = 3, groups = 2, share = 19, tokens = 67, channels = groups * ranks * share;
      const auto random = [&](const Shape& shape, std::uint64_t seed, double scale = 1) {
        return random_tensor(shape, dtype, seed, scale).to(device);
      };
      const Operands whole{random({tokens, channels}, 1), random({tokens, channels}, 2, 2.0),
                           random({shared ? ranks * share : channels}, 3), random({tokens, channels}, 4)};
      const std::int64_t weights = shared ? 1 : groups;  // the groups that a weight has
      const std::vector<Tensor> want = run(whole, groups, {}, GateOrder::norm_first);
      on_ranks(ranks, [&](std::size_t rank, ThreadReduction& reduction) {
        const auto own = [&](const Tensor& x, std::int64_t of) { return share_of(x, of, ranks, rank); };
        const Operands mine{
            own(whole.y, groups), own(whole.z, groups),
            own(whole.weight.reshape({1, whole.weight.numel()}), weights).reshape({weights * share}),
            own(whole.dout, groups)};
        const std::vector<Tensor> got = run(mine, groups, {&reduction, ranks}, GateOrder::norm_first);
        const double bound = dtype == DType::f64 ? 0x1p-47 : dtype == DType::f32 ? 0x1p-18 : 0x1p-8;
        for (std::size_t i = 0; i < want.size(); ++i) {
          CAPTURE(i);
          CHECK(relative_error(got[i], own(want[i], i == 3 ? weights : groups)) < bound);
        }
        CHECK(reduction.messages == std::vector<Shape>(2, Shape{tokens, groups}));
      });
    }
  });
}

TEST_CASE("gated_rmsnorm, groups over ranks: the gradients are those of the function") {
  // One rank's y is moved by h: the loss of all ranks changes by h times the gradient.
  const std::int64_t ranks = 3, groups = 2, channels = 12;
  const Operands whole{random_tensor({4, channels}, DType::f64, 1),
                       random_tensor({4, channels}, DType::f64, 2), random_tensor({channels}, DType::f64, 3),
                       random_tensor({4, channels}, DType::f64, 4)};
  const auto run_shares = [&](const Operands& o, auto&& use) {
    on_ranks(ranks, [&](std::size_t rank, ThreadReduction& reduction) {
      const auto own = [&](const Tensor& x) { return share_of(x, groups, ranks, rank); };
      const Operands mine{own(o.y), own(o.z), own(o.weight.reshape({1, channels})).reshape({4}), own(o.dout)};
      use(rank, mine, run(mine, groups, {&reduction, ranks}));
    });
  };
  const auto loss = [&](const Operands& o) {
    double sum = 0;
    run_shares(o, [&](std::size_t, const Operands& mine, const std::vector<Tensor>& got) {
      const auto out = got[0].to_vector(), dout = mine.dout.to_vector();
      for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    });
    return sum;
  };
  std::vector<std::vector<Tensor>> gradients(ranks);
  run_shares(whole, [&](std::size_t rank, const Operands&, const std::vector<Tensor>& got) {
    gradients[rank] = got;
  });
  const double h = 1e-5;
  for (const std::size_t which : {0, 1, 2})
    for (std::int64_t c = 0; c < channels; ++c) {
      CAPTURE(which);
      CAPTURE(c);
      const Tensor& moved = which == 0 ? whole.y : which == 1 ? whole.z : whole.weight;
      double& element = moved.data<double>()[c];  // of the first token
      const double before = element;
      element = before + h;
      const double up = loss(whole);
      element = before - h;
      const double down = loss(whole);
      element = before;
      const std::int64_t group = c / 6, rank = c % 6 / 2, column = group * 2 + c % 2;
      const double gradient = gradients[static_cast<std::size_t>(rank)][1 + which].row<double>(0)[column];
      CHECK(gradient == doctest::Approx((up - down) / (2 * h)).epsilon(1e-7));
    }
}

TEST_CASE("gated_rmsnorm, groups over ranks: no message in backward where nothing is recorded") {
  on_ranks(2, [&](std::size_t rank, ThreadReduction& reduction) {
    const Tensor x = random_tensor({5, 4}, DType::f32, rank);
    Context ctx;
    gated_rmsnorm(ctx, x, x, random_tensor({4}, DType::f32, 3), 2, 1e-5, {&reduction, 2});
    CHECK(reduction.messages == std::vector<Shape>{{5, 2}});
  });
}
