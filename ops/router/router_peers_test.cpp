#include <doctest/doctest.h>

#include "ops/router/router.h"
#include "ops/test_ranks.h"
#include "tests/support/compare.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

// A microbatch whose tokens are divided over ranks, against the whole microbatch.

namespace {

using Lengths = std::vector<std::int64_t>;

/// Rows of each sequence on each rank: [rank][sequence].
using Division = std::vector<Lengths>;

// Whole sequences on one rank, sequences over several ranks, a rank without rows, an empty sequence.
const Division ragged{{4, 0, 0, 3}, {0, 0, 0, 0}, {2, 1, 0, 5}};

Lengths whole_lengths(const Division& division) {
  Lengths whole(division[0].size(), 0);
  for (const Lengths& lengths : division)
    for (std::size_t q = 0; q < lengths.size(); ++q) whole[q] += lengths[q];
  return whole;
}

/// The rows of a rank: in each sequence, ranks have consecutive rows in their order.
std::vector<std::int64_t> rows_of(const Division& division, std::size_t rank) {
  const Sequences whole = Sequences::of_lengths(whole_lengths(division));
  std::vector<std::int64_t> rows;
  for (std::size_t q = 0; q < division[rank].size(); ++q) {
    std::int64_t first = whole.begin(static_cast<std::int64_t>(q));
    for (std::size_t before = 0; before < rank; ++before) first += division[before][q];
    for (std::int64_t i = 0; i < division[rank][q]; ++i) rows.push_back(first + i);
  }
  return rows;
}

Tensor take_rows(const Tensor& x, const std::vector<std::int64_t>& rows) {
  const Tensor own = Tensor::empty({std::ssize(rows), x.cols()}, x.dtype(), Device::cpu);
  for (std::size_t i = 0; i < rows.size(); ++i)
    own.select(static_cast<std::int64_t>(i)).copy_from(x.select(rows[i]));
  return own;
}

RouterOptions options_of(std::int64_t experts, unsigned losses, RouterScores scores = RouterScores::sigmoid) {
  RouterOptions o{
      .experts = experts, .top_k = 2, .scores = scores, .normalise = false, .aux_grad_scale = 0.5};
  if (losses & 1) o.aux_loss_coef = 0.7;
  if (losses & 2) o.seq_aux_loss_coef = 1.3;
  if (losses & 4) o.global_aux_loss_coef = 0.9;
  if (losses & 8) o.z_loss_coef = 0.4;
  return o;
}

/// Losses and scores to test.
const std::vector<std::pair<unsigned, RouterScores>> kinds = [] {
  std::vector<std::pair<unsigned, RouterScores>> all;
  for (const RouterScores scores : {RouterScores::sigmoid, RouterScores::softmax})
    for (const unsigned losses : {1u, 2u, 4u, 8u, 15u}) all.emplace_back(losses, scores);
  return all;
}();

struct Outcome {
  Routing routing;
  Tensor dx, dx_again;  ///< of the call, and of a replay
};

// With the unit matrix as gate, logits are x and dx is the gradient of the logits, both exactly.
Outcome run(const Tensor& x, const Tensor& dweights, const RouterOptions& o, const Sequences& sequences,
            RouterTotals& totals) {
  const Tensor gate = Tensor::zeros({o.experts, o.experts}, x.dtype(), Device::cpu);
  for (std::int64_t i = 0; i < o.experts; ++i) gate.narrow(0, i, 1).narrow(1, i, 1).fill(1);
  const Tensor bias = random_tensor({o.experts}, x.dtype(), 5, 0.2);
  const auto pass = [&](const RouterChoice* replay) {
    const Var in = Var::leaf(x);
    Tape tape;
    Context ctx{.tape = &tape};
    const Routing r = route(ctx, in, gate, bias, o, sequences, &totals, replay);
    tape.backward(r.weights, dweights);
    return std::pair{r, in.grad()};
  };
  const auto [routing, dx] = pass(nullptr);
  return {routing, dx, pass(&routing.choice).second};
}

std::function<void(const Tensor&)> sum_with(ThreadReduction& ranks) {
  return [&ranks](const Tensor& t) { ranks.sum(t); };
}

}  // namespace

TEST_CASE("router, divided microbatch: losses add up to those of the whole, gradients have the same bits") {
  const std::int64_t experts = 5, tokens = 15;
  const Sequences whole = Sequences::of_lengths(whole_lengths(ragged));
  for (const DType dtype : {DType::f64, DType::f32})
    for (const auto& [losses, scores] : kinds) {
      CAPTURE(dtype);
      CAPTURE(losses);
      CAPTURE(scores == RouterScores::softmax);
      const Tensor x = random_tensor({tokens, experts}, dtype, 1), dw = random_tensor({tokens, 2}, dtype, 2);
      RouterOptions o = options_of(experts, losses, scores);
      // Another microbatch came before this one.
      const Tensor before = Tensor::from<std::int64_t>({7, 0, 1, 4, 2, 7}, {6});
      RouterTotals whole_totals{before.clone()};
      const Outcome want = run(x, dw, o, whole, whole_totals);
      std::vector<double> sum(router_losses.size(), 0);
      on_ranks(ragged.size(), [&](std::size_t rank, ThreadReduction& ranks) {
        const auto rows = rows_of(ragged, rank);
        RouterOptions own = o;
        own.sum_over_peers = sum_with(ranks);
        RouterTotals totals{before.clone(), sum_with(ranks)};
        const Outcome got =
            run(take_rows(x, rows), take_rows(dw, rows), own, Sequences::of_lengths(ragged[rank]), totals);
        const auto share = got.routing.losses.to_vector();
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += share[i];
        CHECK_BITS(got.dx, take_rows(want.dx, rows));
        CHECK_BITS(got.dx_again, take_rows(want.dx, rows));
        CHECK_BITS(totals.sums, whole_totals.sums);
      });
      const auto expected = want.routing.losses.to_vector();
      for (std::size_t i = 0; i < sum.size(); ++i) {
        CHECK((expected[i] != 0) == ((losses >> i & 1) != 0));
        CHECK(close(sum[i], expected[i], {dtype == DType::f64 ? 1e-14 : 1e-6, 0}));
      }
    }
}

TEST_CASE("router, divided microbatch: gradients of the sum of all shares against central differences") {
  for (const auto& [losses, scores] : kinds) {
    CAPTURE(losses);
    CAPTURE(scores == RouterScores::softmax);
    const RouterOptions options_here = options_of(5, losses, scores);
    const Tensor bias = random_tensor({5}, DType::f64, 5, 0.2);
    const DiffFn fn = [&](Context& ctx, const std::vector<Var>& in) {
      std::vector<Var> outputs(ragged.size());
      double sum = 0;
      on_ranks(ragged.size(), [&](std::size_t rank, ThreadReduction& ranks) {
        RouterOptions o = options_here;
        o.aux_grad_scale = 1;
        o.sum_over_peers = sum_with(ranks);
        RouterTotals totals{{}, sum_with(ranks)};
        const Routing r =
            route(ctx, in[rank], in.back(), bias, o, Sequences::of_lengths(ragged[rank]), &totals);
        outputs[rank] = r.weights;
        for (const double loss : r.losses.to_vector()) sum += loss;
      });
      outputs.push_back(Tensor::scalar(sum, DType::f64, Device::cpu));
      return outputs;
    };
    std::vector<Tensor> inputs;
    for (std::size_t rank = 0; rank < ragged.size(); ++rank)
      inputs.push_back(random_tensor({std::ssize(rows_of(ragged, rank)), 7}, DType::f64, rank));
    inputs.push_back(random_tensor({5, 7}, DType::f64, 9, 0.4));
    GradCheckOptions options;
    options.unit_cotangents = true;
    CHECK_GRADIENTS(fn, inputs, options);
  }
}

TEST_CASE("router, divided microbatch: one message, and none where no coefficient needs it") {
  const auto messages = [](unsigned losses, const Division& division) {
    std::vector<std::vector<Shape>> peers(division.size()), devices(division.size());
    on_ranks(division.size(), [&](std::size_t rank, ThreadReduction& ranks) {
      const Sequences sequences = Sequences::of_lengths(division[rank]);
      const std::int64_t tokens = sequences.tokens();
      RouterOptions o = options_of(5, losses);
      o.sum_over_peers = [&](const Tensor& t) {
        peers[rank].push_back(t.shape());
        ranks.sum(t);
      };
      RouterTotals totals{{}, [&](const Tensor& t) {
                            devices[rank].push_back(t.shape());
                            ranks.sum(t);
                          }};
      run(random_tensor({tokens, 5}, DType::f32, 1), random_tensor({tokens, 2}, DType::f32, 2), o, sequences,
          totals);
    });
    for (std::size_t rank = 1; rank < division.size(); ++rank) {
      CHECK(peers[rank] == peers[0]);
      CHECK(devices[rank] == devices[0]);
    }
    return std::pair{peers[0], devices[0]};
  };
  using Shapes = std::vector<Shape>;
  for (const Division& division : {ragged, Division{{0, 0, 0, 0}, {0, 0, 0, 0}}}) {
    CHECK(messages(0, division) == std::pair{Shapes{}, Shapes{}});
    CHECK(messages(1, division) == std::pair{Shapes{{1, 6}}, Shapes{}});
    CHECK(messages(2, division) == std::pair{Shapes{{4, 6}}, Shapes{}});
    CHECK(messages(4, division) == std::pair{Shapes{{1, 1}}, Shapes{{6}}});
    CHECK(messages(8, division) == std::pair{Shapes{{1, 1}}, Shapes{}});
    CHECK(messages(9, division) == std::pair{Shapes{{1, 6}}, Shapes{}});
    CHECK(messages(15, division) == std::pair{Shapes{{4, 6}}, Shapes{{6}}});
  }
  // A microbatch without sequences has no rows anywhere.
  CHECK(messages(2, Division{{}, {}}) == std::pair{Shapes{}, Shapes{}});
}
