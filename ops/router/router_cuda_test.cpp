#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "ops/router/router_kernels.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

// The kernels on CUDA against those of the CPU, which get the same operands.

namespace {

/// Sizes of one thread's experts, of several, of groups with and without a rest; more than a block of 8
/// tokens can have in 48 KiB.
const std::vector<RouterOptions> kernel_options{
    {.experts = 1, .top_k = 1},
    {.experts = 8, .top_k = 8, .normalise = false, .scaling = 2.5},
    {.experts = 33, .top_k = 5, .scaling = 2.5},
    {.experts = 128, .top_k = 6, .scaling = 2.5},
    {.experts = 64, .top_k = 8, .groups = 8, .top_groups = 3},
    {.experts = 36, .top_k = 3, .groups = 12, .top_groups = 1},
    {.experts = 66, .top_k = 4, .groups = 66, .top_groups = 40},
    {.experts = 150, .top_k = 70, .groups = 3, .top_groups = 2, .normalise = false},
    {.experts = 2000, .top_k = 3},
    {.experts = 13, .top_k = 5, .balanced = true},
};

/// Halves, so that many are equal.
Tensor halves(const Shape& shape, std::uint64_t seed, double scale) {
  const Tensor t = random_tensor(shape, DType::f32, seed, scale);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = std::round(2 * t.data<float>()[i]) / 2;
  return t;
}

}  // namespace

TEST_CASE("router: on cuda the choices are those of the CPU, also among equal scores" *
          doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("router")) return;
  for (const RouterOptions& o : kernel_options)
    for (const std::int64_t tokens : {0, 1, 19})
      for (const bool ties : {false, true}) {
        CAPTURE(o.experts);
        CAPTURE(o.groups);
        CAPTURE(tokens);
        CAPTURE(ties);
        const Shape shape{tokens, o.experts};
        const Tensor scores = ties ? halves(shape, 1, 0.7) : random_tensor(shape, DType::f32, 1);
        if (tokens > 3) {
          scores.select(1).fill(std::nan(""));
          scores.select(2).fill(-INFINITY);
          scores.narrow(0, 3, 1).narrow(1, o.experts / 2, 1).fill(INFINITY);
          scores.select(4).fill(-0.0);
          scores.narrow(0, 4, 1).narrow(1, 0, o.experts / 3).fill(0);
        }
        for (const Tensor& bias : {Tensor(), halves({o.experts}, 2, 0.7)}) {
          const auto choice = [&](Device device) {
            const Tensor experts = Tensor::empty({tokens, o.top_k}, DType::i32, device);
            router_select(experts, scores.to(device), bias ? bias.to(device) : bias, o);
            return experts;
          };
          CHECK_BITS(choice(Device::cuda), choice(Device::cpu));
        }
      }
  const Tensor scores = Tensor::zeros({2, 1 << 16}, DType::f32, Device::cuda),
               experts = Tensor::empty({2, 1}, DType::i32, Device::cuda);
  CHECK_THROWS_AS(router_select(experts, scores, Tensor(), {.experts = 1 << 16, .top_k = 1}), Error);
}

namespace {

/// Operands of the kernels after the logits, and their results on a device.
struct KernelCase {
  RouterOptions options;
  Tensor logits, bias, dweights;
  KernelCase(const RouterOptions& o, std::int64_t tokens, bool biased)
      : options(o),
        logits(random_tensor({tokens, o.experts}, DType::f32, 1, 2)),
        bias(biased ? random_tensor({o.experts}, DType::f32, 2, 0.2) : Tensor()),
        dweights(random_tensor({tokens, o.top_k}, DType::f32, 3)) {}

  struct Choice {
    Tensor scores, experts, weights, counts;
  };
  /// Scores only where something reads them, or `with_scores`.
  Choice choose(Device device, const Tensor& known, bool with_scores = false) const {
    const Shape of_choice{logits.rows(), options.top_k};
    const bool scored = with_scores || uses_scores(options, bias);
    Choice c{scored ? Tensor::empty(logits.shape(), DType::f32, device) : Tensor(),
             known ? known.to(device) : Tensor::empty(of_choice, DType::i32, device),
             Tensor::empty(of_choice, DType::f32, device),
             Tensor::zeros({options.experts}, DType::i64, device)};
    router_choose(c.scores, c.experts, c.weights, c.counts, logits.to(device),
                  bias ? bias.to(device) : Tensor(), options, known.defined(), Tensor());
    return c;
  }
  Tensor gradient(Device device, const Tensor& scores, const Tensor& weights, const Tensor& experts,
                  bool with_weights, const AuxGradient& aux) const {
    const auto here = [&](const Tensor& t) { return t ? t.to(device) : Tensor(); };
    const Tensor dlogits = Tensor::empty(logits.shape(), DType::f32, device);
    const AuxGradient own{.factors = here(aux.factors),
                          .offsets = here(aux.offsets),
                          .logits = here(aux.logits),
                          .tokens = here(aux.tokens),
                          .z_scale = aux.z_scale};
    router_backward(dlogits, with_weights ? dweights.to(device) : Tensor(), here(scores),
                    backward_uses_weights(options) ? here(weights) : Tensor(), experts.to(device), options,
                    own);
    return dlogits;
  }
};

void check_choice_and_gradient(const KernelCase& c) {
  const RouterOptions& o = c.options;
  const std::int64_t tokens = c.logits.rows();
  const auto got = c.choose(Device::cuda, {});
  const Tensor experts = Tensor::empty({tokens, o.top_k}, DType::i32, Device::cpu),
               scores = got.scores ? got.scores.to(Device::cpu) : Tensor();
  router_select(experts, selects_by_logits(o, c.bias) ? c.logits : scores, c.bias, o);
  CHECK_BITS(got.experts, experts);
  const Tensor counts = Tensor::zeros({o.experts}, DType::i64, Device::cpu);
  for (const double e : experts.to_vector()) ++counts.data<std::int64_t>()[static_cast<std::size_t>(e)];
  CHECK_BITS(got.counts, counts);
  const auto want = c.choose(Device::cpu, experts), again = c.choose(Device::cuda, experts);
  // e^x, a sum and a quotient, softmax: a sum of all; the weights add sums of k scores and two quotients.
  const bool softmax = o.scores == RouterScores::softmax;
  const double terms = static_cast<double>(softmax ? o.experts : o.top_k);
  if (scores)
    CHECK_CLOSE(got.scores, want.scores, (Tol{(8 + (softmax ? 8 * std::sqrt(terms) : 0)) * 0x1p-24, 0}));
  CHECK_CLOSE(got.weights, want.weights, (Tol{(8 + 4 * std::sqrt(terms)) * 0x1p-23, 0}));
  if (scores) CHECK_BITS(again.scores, got.scores);
  CHECK_BITS(again.weights, got.weights);
  CHECK_BITS(again.counts, Tensor::zeros({o.experts}, DType::i64, Device::cpu));
  if (softmax) CHECK_BITS(c.choose(Device::cuda, {}, true).weights, got.weights);

  // Parts, one of them empty.
  const Tensor offsets = Tensor::from<std::int64_t>({0, tokens / 3, tokens / 3, tokens}, {4}),
               factors = random_tensor({3, o.experts}, DType::f32, 4),
               count = Tensor::from<std::int64_t>({2 * tokens + 1}, {1});
  for (const bool with_weights : {false, true})
    for (const bool balance : {false, true})
      for (const bool z_loss : {false, true}) {
        CAPTURE(with_weights);
        CAPTURE(balance);
        CAPTURE(z_loss);
        if (balance && !scores) continue;
        AuxGradient aux{.factors = {}, .offsets = {}, .logits = {}, .tokens = {}};
        if (balance) aux.factors = factors, aux.offsets = offsets;
        if (z_loss) aux.logits = c.logits, aux.tokens = count, aux.z_scale = 3;
        const auto gradient = [&](Device device) {
          return c.gradient(device, scores, want.weights, experts, with_weights, aux);
        };
        const Tensor dlogits = gradient(Device::cuda);
        CHECK_CLOSE(dlogits, gradient(Device::cpu), sum_tol(DType::f32, o.experts, 4));
        CHECK_BITS(gradient(Device::cuda), dlogits);
      }
}

}  // namespace

TEST_CASE("router: on cuda scores, weights and gradients are those of the CPU" *
          doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("router")) return;
  for (const RouterOptions& o : kernel_options)
    for (const std::int64_t tokens : {0, 1, 19}) {
      CAPTURE(o.experts);
      CAPTURE(o.groups);
      CAPTURE(tokens);
      check_choice_and_gradient({o, tokens, true});
    }
}

TEST_CASE("softmax router: on cuda scores, weights and gradients are those of the CPU" *
          doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("router")) return;
  for (RouterOptions o : kernel_options)
    for (const bool normalise : {false, true})
      for (const bool biased : {false, true}) {
        CAPTURE(o.experts);
        CAPTURE(o.groups);
        CAPTURE(normalise);
        CAPTURE(biased);
        o.scores = RouterScores::softmax;
        o.normalise = normalise;
        const std::int64_t tokens = o.experts > 1000 ? 3 : 11;
        check_choice_and_gradient({o, tokens, biased});
      }
}

TEST_CASE("softmax router: on cuda large logits and ties as on the CPU" * doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("router")) return;
  for (const bool normalise : {false, true}) {
    CAPTURE(normalise);
    RouterOptions o{
        .experts = 70, .top_k = 40, .scores = RouterScores::softmax, .normalise = normalise, .scaling = 2};
    for (const bool biased : {false, true}) {
      CAPTURE(biased);
      KernelCase c(o, 6, biased);
      c.logits = halves(c.logits.shape(), 5, 40);
      c.logits.select(0).fill(0.5);
      c.logits.narrow(0, 1, 1).narrow(1, 60, 1).fill(1e4);
      c.logits.select(2).fill(-1e4);
      c.logits.select(3).fill(std::nan(""));
      c.logits.narrow(0, 4, 1).narrow(1, 3, 30).fill(-INFINITY);
      const auto want = c.choose(Device::cpu, {}, true);
      const auto got = c.choose(Device::cuda, want.experts, true);
      if (!biased) CHECK_BITS(c.choose(Device::cuda, {}).experts, want.experts);
      for (const std::int64_t row : {0, 1, 2, 4, 5}) {
        CHECK_CLOSE(got.weights.select(row), want.weights.select(row), (Tol{64 * 0x1p-24, 1e-36}));
        const auto part = [&](Device device) {
          return c.gradient(device, want.scores, want.weights, want.experts, true, {}).select(row);
        };
        CHECK_CLOSE(part(Device::cuda), part(Device::cpu), (Tol{0, 64 * 0x1p-24}));
      }
      for (const double w : got.weights.select(3).to_vector()) CHECK(std::isnan(w));
    }
  }
}

TEST_CASE("router: on cuda counts, balance and losses are those of the CPU" * doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("router")) return;
  const std::int64_t experts = 45, k = 3;
  for (const std::int64_t tokens : {1, 19, 5000})
    for (const std::int64_t parts : {1, 4, 300}) {
      CAPTURE(tokens);
      CAPTURE(parts);
      std::vector<std::int64_t> ends{0};
      for (std::int64_t q = 1; q <= parts; ++q) ends.push_back(q * q * tokens / (parts * parts));
      const Tensor offsets = Tensor::from(ends, {parts + 1});
      const Tensor logits = random_tensor({tokens, experts}, DType::f32, 1, 2),
                   scores = Tensor::empty(logits.shape(), DType::f32, Device::cpu),
                   chosen = Tensor::empty({tokens, k}, DType::i32, Device::cpu);
      router_choose(scores, chosen, Tensor::empty({tokens, k}, DType::f32, Device::cpu),
                    Tensor::zeros({experts}, DType::i64, Device::cpu), logits, Tensor(),
                    {.experts = experts, .top_k = k}, false, Tensor());
      struct Result {
        Tensor table, whole, tokens_of_parts, factors, other_factors, losses;
      };
      const auto run = [&](Device device) {
        const auto here = [&](const Tensor& t) { return t.to(device); };
        const Tensor at = here(offsets);
        Result r;
        r.table = Tensor::empty({parts, experts + 1}, DType::i64, device);
        router_count(r.table, here(chosen), at);
        r.tokens_of_parts = Tensor::empty({parts, 1}, DType::i64, device);
        router_count(r.tokens_of_parts, here(chosen), at);
        r.whole = Tensor::empty({experts + 1}, DType::i64, device);
        router_sum_parts(r.whole, r.table);
        const Tensor all = Tensor::empty({1, experts + 1}, DType::i64, device);
        router_count(all, here(chosen), Tensor());
        CHECK_BITS(all.select(0), r.whole);
        add_counts(r.whole, all.select(0));
        r.factors = Tensor::zeros({2 * parts + 2, experts}, DType::f32, device);
        BalanceFactors f{.table = r.table,
                         .whole = all.select(0),
                         .totals = r.whole,
                         .sequences = r.factors.narrow(0, 0, parts),
                         .microbatch = r.factors.narrow(0, parts, 1),
                         .global = r.factors.narrow(0, parts + 1, 1),
                         .sum = r.factors.narrow(0, parts + 2, parts)};
        RouterOptions o{.experts = experts,
                        .top_k = k,
                        .aux_loss_coef = 0.7,
                        .seq_aux_loss_coef = 1.3,
                        .global_aux_loss_coef = 0.9,
                        .aux_grad_scale = 0.3};
        router_balance(f, o);
        r.losses = Tensor::zeros({3}, DType::f64, device);
        router_balance_loss(r.losses.narrow(0, 0, 1), here(scores), f.sequences, at);
        router_balance_loss(r.losses.narrow(0, 1, 1), here(scores), f.global, Tensor());
        router_z_loss(r.losses.narrow(0, 2, 1), here(logits), all.select(0).narrow(0, experts, 1), 0.4,
                      Tensor());
        // Factors without those of the sequences.
        f.sequences = Tensor();
        f.sum = r.other_factors = Tensor::empty({parts, experts}, DType::f32, device);
        router_balance(f, o);
        return r;
      };
      const Result got = run(Device::cuda), again = run(Device::cuda), want = run(Device::cpu);
      CHECK_BITS(got.table, want.table);
      CHECK_BITS(got.whole, want.whole);
      CHECK_BITS(got.tokens_of_parts, want.tokens_of_parts);
      // Formed in f64 and rounded, but for the logarithm in f32 of z-loss.
      CHECK_CLOSE(got.factors, want.factors, (Tol{4 * 0x1p-24, 0}));
      CHECK_CLOSE(got.other_factors, want.other_factors, (Tol{4 * 0x1p-24, 0}));
      CHECK_CLOSE(got.losses, want.losses, (Tol{32 * 0x1p-24, 0}));
      CHECK_BITS(again.factors, got.factors);
      CHECK_BITS(again.losses, got.losses);
    }
}
