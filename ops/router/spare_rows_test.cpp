#include <doctest/doctest.h>

#include "core/kernel.h"
#include "ops/router/router.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

constexpr std::int64_t hidden = 12, experts = 8, top_k = 3;
const std::vector<std::int64_t> lengths{4, 0, 3};

struct Result {
  Routing routing;
  Tensor dx, dgate, totals;
};

/// Routes x with all losses; the gradient of the weights is random in rows with tokens, 0 in the others.
Result run(const Tensor& x, const Sequences& sequences, RouterScores scores, bool balanced, bool replayed,
           Device device) {
  const DType acc = accumulate_dtype(x.dtype());
  RouterOptions o{.experts = experts, .top_k = top_k, .groups = 4, .top_groups = 2, .scores = scores};
  o.aux_loss_coef = 0.5;
  o.seq_aux_loss_coef = 0.25;
  o.global_aux_loss_coef = 0.125;
  o.z_loss_coef = 0.75;
  o.balanced = balanced;
  const Tensor bias = random_tensor({experts}, acc, 3, 0.2).to(device);
  const Var in = Var::leaf(x.to(device)),
            gate = Var::leaf(random_tensor({experts, hidden}, x.dtype(), 2, 0.3).to(device));
  RouterTotals totals;
  Result result;
  Tape tape;
  Context recorded{.tape = &tape}, plain;
  result.routing = route(replayed ? plain : recorded, in, gate, bias, o, sequences, &totals);
  const Routing again = replayed
                            ? route(recorded, in, gate, bias, o, sequences, nullptr, &result.routing.choice)
                            : result.routing;
  const Tensor dweights = Tensor::zeros(again.weights.shape(), acc, device);
  dweights.narrow(0, 0, 7).copy_from(random_tensor({7, top_k}, acc, 4));
  tape.backward(again.weights, dweights);
  result.dx = in.grad();
  result.dgate = gate.grad();
  result.totals = totals.sums;
  return result;
}

}  // namespace

TEST_CASE("router: spare rows are in no count, loss or gradient, and load all experts alike" *
          doctest::test_suite("cuda")) {
  std::vector<Device> devices = test_devices("router");
  if (!runs_on_cuda("matmul")) std::erase(devices, Device::cuda);
  for_dtypes(devices, [&](Device device, DType dtype) {
    for (const auto& [scores, balanced] : {std::pair{RouterScores::sigmoid, false},
                                           {RouterScores::sigmoid, true},
                                           {RouterScores::softmax, false},
                                           {RouterScores::softmax, true}})
      for (const bool replayed : {false, true}) {
        CAPTURE(scores == RouterScores::softmax);
        CAPTURE(balanced);
        CAPTURE(replayed);
        const Tensor x = random_tensor({15, hidden}, dtype, 1);
        const Sequences tight = Sequences::of_lengths(lengths), roomy = tight.with_capacity(15, 5);
        const Result got = run(x, roomy, scores, balanced, replayed, device),
                     want = run(x.narrow(0, 0, 7), tight, scores, balanced, replayed, device);
        const auto tokens = [](const Tensor& t) { return t.narrow(0, 0, 7); };
        const double most = dtype == DType::bf16 ? 0x1p-7 : dtype == DType::f32 ? 0x1p-20 : 0x1p-45;
        const auto same = [&](const Tensor& a, const Tensor& b) { return relative_error(a, b) <= most; };
        CHECK_BITS(tokens(got.routing.choice.experts), want.routing.choice.experts);
        CHECK_BITS(got.routing.counts, want.routing.counts);
        CHECK_BITS(got.totals, want.totals);
        CHECK(same(tokens(got.routing.weights.value()), want.routing.weights.value()));
        CHECK(same(got.routing.losses, want.routing.losses));
        CHECK(same(tokens(got.dx), want.dx));
        CHECK(same(got.dgate, want.dgate));
        CHECK_BITS(got.dx.narrow(0, 7, 8), Tensor::zeros({8, hidden}, got.dx.dtype(), device));
        // Eight rows with three choices each: every expert three times.
        std::vector<int> load(experts);
        for (const double expert : got.routing.choice.experts.narrow(0, 7, 8).to_vector())
          ++load[static_cast<std::size_t>(expert)];
        CHECK(load == std::vector<int>(experts, 3));
      }
  });
}
