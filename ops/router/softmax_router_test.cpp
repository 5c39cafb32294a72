#include <omp.h>

#include <array>

#include "core/host_wait.h"
#include "ops/router/router_kernels.h"
#include "ops/router/test_cases.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

RouterOptions softmax(std::int64_t experts, std::int64_t top_k, bool normalise = true, double scaling = 1) {
  return {.experts = experts,
          .top_k = top_k,
          .scores = RouterScores::softmax,
          .normalise = normalise,
          .scaling = scaling};
}

void set_losses(RouterOptions& o, unsigned losses) {
  if (losses & 1) o.aux_loss_coef = 0.7;
  if (losses & 2) o.seq_aux_loss_coef = 1.3;
  if (losses & 4) o.global_aux_loss_coef = 0.9;
  if (losses & 8) o.z_loss_coef = 0.4;
}

std::vector<double> weights_of(const Routing& r) { return r.weights.value().to_vector(); }

/// With the unit matrix as gate: the routing, and the gradient of the logits.
struct Graded {
  Routing routing;
  Tensor dlogits;
};
Graded grade(const Tensor& logits, const Tensor& bias, const RouterOptions& o, const Tensor& dweights) {
  const Var x = Var::leaf(logits);
  Tape tape;
  Context ctx{.tape = &tape};
  const Routing r =
      route(ctx, x, unit_matrix(o.experts).to(logits.dtype()), bias, o, Sequences::uniform(1, logits.dim(0)));
  tape.backward(r.weights, dweights);
  return {r, x.grad()};
}

}  // namespace

TEST_CASE("softmax router: weights are shares of all experts, or of the chosen") {
  const double powers[] = {1, std::exp(1), std::exp(2), std::exp(3)};
  const double all = powers[0] + powers[1] + powers[2] + powers[3];
  const Routing whole = route_logits({3, 0, 1, 2}, {}, softmax(4, 2, false, 2.5));
  CHECK(chosen(whole) == std::vector<double>{0, 3});
  CHECK(close(weights_of(whole)[0], 2.5 * powers[3] / all, {1e-15, 0}));
  CHECK(close(weights_of(whole)[1], 2.5 * powers[2] / all, {1e-15, 0}));
  const Routing chosen_alone = route_logits({3, 0, 1, 2}, {}, softmax(4, 2, true, 2.5));
  CHECK(close(weights_of(chosen_alone)[0], 2.5 * powers[3] / (powers[3] + powers[2]), {1e-15, 0}));
  CHECK(close(weights_of(chosen_alone)[1], 2.5 * powers[2] / (powers[3] + powers[2]), {1e-15, 0}));
  // A bias chooses, and does not weigh: 0.03, 0.09, 0.24 and 0.64 without it.
  const Routing biased = route_logits({0, 1, 2, 3}, {0.7, 0, 0, -0.6}, softmax(4, 2, false));
  CHECK(chosen(biased) == std::vector<double>{0, 2});
  CHECK(close(weights_of(biased)[0], powers[0] / all, {1e-15, 0}));
  CHECK(close(weights_of(biased)[1], powers[2] / all, {1e-15, 0}));
}

TEST_CASE("softmax router: ties go to the lowest index; scores equal by rounding are none") {
  const std::vector<double> flat(6, 0.25);
  CHECK(chosen(route_logits(flat, {}, softmax(6, 3))) == std::vector<double>{0, 1, 2});
  CHECK(chosen(route_logits(flat, {0, 1, 0, 1, 0, 0}, softmax(6, 3))) == std::vector<double>{0, 1, 3});
  RouterOptions grouped = softmax(6, 2);
  grouped.groups = 3;
  CHECK(chosen(route_logits(flat, {}, grouped)) == std::vector<double>{0, 1});
  // The scores are 0, 1, 0 and 0, but the logits have an order.
  const Routing r = route_logits({-3000, 1e4, -2000, -1000}, {}, softmax(4, 3, false));
  CHECK(chosen(r) == std::vector<double>{1, 2, 3});
  CHECK(weights_of(r) == std::vector<double>{1, 0, 0});
}

TEST_CASE("softmax router: large logits") {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const double size : {80.0, 1e4})
      for (const bool normalise : {false, true}) {
        CAPTURE(dtype);
        CAPTURE(size);
        CAPTURE(normalise);
        const Tensor logits =
            Tensor::from<double>({size, size, -size, -size, -size, -size, -size, -size - 1}, {2, 4})
                .to(dtype);
        const Tensor dw = Tensor::from<double>({1, 3, 1, 3}, {2, 2}).to(dtype);
        RouterOptions o = softmax(4, 2, normalise);
        const Graded best = grade(logits, {}, o, dw);
        CHECK(chosen(best.routing) == std::vector<double>{0, 1, 0, 1});
        const double last = std::exp(-1.0), others = normalise ? 2 : 3 + last;
        const Tol tolerance{dtype == DType::f64 ? 1e-14 : 1e-6, 0};
        CHECK_CLOSE(best.routing.weights.value(),
                    Tensor::from<double>({0.5, 0.5, 1 / others, 1 / others}, {2, 2}), tolerance);
        // Both are 1/2: dl = (1 - 2) / 2, (3 - 2) / 2. The second token has the same among the chosen alone.
        const double mean = 4 / others;
        const Tensor want =
            normalise ? Tensor::from<double>({-0.5, 0.5, 0, 0, -0.5, 0.5, 0, 0}, {2, 4})
                      : Tensor::from<double>({-0.5, 0.5, 0, 0, (1 - mean) / others, (3 - mean) / others,
                                              -mean / others, -mean * last / others},
                                             {2, 4});
        CHECK_CLOSE(best.dlogits, want, (Tol{tolerance.rel, tolerance.rel}));

        // The bias chooses experts whose scores are 0 in f32; their shares among the chosen are not.
        const Tensor bias = Tensor::from<double>({0, 0, 5, 6}, {4}).to(dtype);
        const Graded least = grade(Tensor::from<double>({size, 0, -size, -size - 1}, {1, 4}).to(dtype), bias,
                                   o, dw.narrow(0, 0, 1));
        CHECK(chosen(least.routing) == std::vector<double>{2, 3});
        const double share = normalise ? 1 / (1 + last) : 0;
        CHECK_CLOSE(least.routing.weights.value(), Tensor::from<double>({share, share * last}, {1, 2}),
                    (Tol{tolerance.rel, 1e-60}));
        const double slope = share * share * last;  // dl = share (1 - mean), mean = share (1 + 3 last)
        CHECK_CLOSE(least.dlogits, Tensor::from<double>({0, 0, -2 * slope, 2 * slope}, {1, 4}),
                    (Tol{4 * tolerance.rel, 1e-30}));
      }
}

TEST_CASE("softmax router: against the definition" * doctest::test_suite("cuda")) {
  struct Size {
    RouterOptions o;
    std::int64_t hidden;
  };
  RouterOptions grouped = softmax(12, 5);
  grouped.groups = 4;
  grouped.top_groups = 2;
  const Size sizes[] = {{softmax(1, 1), 3}, {softmax(8, 8, false), 1}, {softmax(13, 5, true, 2.5), 31},
                        {grouped, 17},      {softmax(128, 8), 97},     {softmax(40, 22, false, 5), 40},
                        {softmax(8, 8), 16}};
  for_dtypes(route_devices(), [&](Device device, DType dtype) {
    for (const Size& size : sizes)
      for (const std::int64_t tokens : {0, 1, 61})
        for (const double coef : {0.0, 0.01})
          for (const bool biased : {false, true}) {
            CAPTURE(size.o.experts);
            CAPTURE(tokens);
            CAPTURE(coef);
            CAPTURE(biased);
            RouterOptions o = size.o;
            o.aux_loss_coef = coef;
            o.seq_aux_loss_coef = 2 * coef;
            o.z_loss_coef = 3 * coef;
            RouterCase c(tokens, size.hidden, o, dtype, 0.05);
            if (!biased) c.bias = Tensor();
            if (tokens == 61)
              c.sequences = Sequences::of_lengths(std::vector<std::int64_t>{0, 20, 1, 0, 40, 0});
            Context ctx;
            // As in the test of sigmoid scores.
            const double ulp = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
            const double tolerance = ulp * (16 + 8 * std::sqrt(static_cast<double>(size.hidden)));
            const Routing r = c.run(ctx, device);
            check_against_reference(r, c.reference(), 4 * tolerance);
            for (const Tensor* t : {&r.choice.experts, &r.counts, &r.losses, &r.weights.value()})
              CHECK(t->device() == device);
          }
  });
}

TEST_CASE("softmax router: all experts chosen, and one expert") {
  RouterCase c(7, 5, softmax(6, 6), DType::f64);
  Context ctx;
  const Tensor weights = c.run(ctx).weights.value();
  c.options.normalise = false;
  CHECK_CLOSE(c.run(ctx).weights.value(), weights, (Tol{1e-14, 0}));
  for (const bool normalise : {false, true}) {
    const Graded one = grade(random_tensor({3, 1}, DType::f64, 1), {}, softmax(1, 1, normalise, 2.5),
                             random_tensor({3, 1}, DType::f64, 2));
    CHECK(weights_of(one.routing) == std::vector<double>(3, 2.5));
    CHECK_CLOSE(one.dlogits, Tensor::zeros({3, 1}, DType::f64, Device::cpu), (Tol{0, 1e-14}));
    const Graded nothing = grade(random_tensor({3, 6}, DType::f64, 1), {}, softmax(6, 2, normalise, 0),
                                 random_tensor({3, 2}, DType::f64, 2));
    CHECK(weights_of(nothing.routing) == std::vector<double>(6, 0));
    CHECK(nothing.dlogits.to_vector() == std::vector<double>(18, 0));
  }
}

TEST_CASE("softmax router: NaN tokens still get distinct experts") {
  for (const bool normalise : {false, true}) {
    RouterCase c(3, 5, softmax(8, 4, normalise), DType::f32);
    c.bias = Tensor();
    c.x.narrow(0, 1, 1).fill(std::nan(""));
    Context ctx;
    const Routing r = c.run(ctx);
    const auto e = chosen(r);
    for (std::size_t i = 4; i < 7; ++i) CHECK(e[i] < e[i + 1]);
    for (std::int64_t j = 0; j < 4; ++j) CHECK(std::isnan(r.weights.value().row<float>(1)[j]));
    for (std::int64_t j = 0; j < 4; ++j) CHECK(std::isfinite(r.weights.value().row<float>(2)[j]));
  }
}

TEST_CASE("softmax router: gradients against central differences") {
  RouterOptions grouped = softmax(8, 3), balanced = softmax(5, 3, false);
  grouped.groups = 4;
  grouped.top_groups = 2;
  balanced.balanced = true;
  const RouterOptions all[] = {softmax(6, 3, true, 2.5),
                               softmax(6, 3, false, 2.5),
                               softmax(5, 1),
                               softmax(5, 1, false),
                               softmax(4, 4),
                               softmax(4, 4, false),
                               grouped,
                               balanced};
  for (const RouterOptions& o : all)
    for (const bool biased : {false, true}) {
      CAPTURE(o.experts);
      CAPTURE(o.top_k);
      CAPTURE(o.normalise);
      CAPTURE(biased);
      RouterCase c(4, 7, o, DType::f64);
      if (!biased) c.bias = Tensor();
      const DiffFn fn = [&](Context& ctx, const std::vector<Var>& in) {
        return std::vector{route(ctx, in[0], in[1], c.bias, c.options, c.sequences).weights};
      };
      CHECK_GRADIENTS(fn, {c.x, c.gate});
      CHECK_GRADIENTS(fn, {c.x, c.gate}, {.wants = {true, false}});
      CHECK_GRADIENTS(fn, {c.x, c.gate}, {.wants = {false, true}});
    }
}

TEST_CASE("softmax router: auxiliary gradients against central differences") {
  for (const bool normalise : {false, true})
    for (const bool balanced : {false, true})
      for (const unsigned losses : {1u, 2u, 4u, 8u, 15u}) {
        CAPTURE(normalise);
        CAPTURE(balanced);
        CAPTURE(losses);
        RouterOptions o = softmax(6, 2, normalise, 1.5);
        o.balanced = balanced;
        set_losses(o, losses);
        RouterCase c(9, 5, o, DType::f64);
        c.bias = Tensor();
        c.sequences = Sequences::of_lengths(std::vector<std::int64_t>{4, 0, 5});
        const DiffFn fn = [&](Context& ctx, const std::vector<Var>& in) {
          RouterTotals totals{Tensor::from<std::int64_t>({7, 0, 1, 4, 0, 2, 7}, {7})};
          const Routing r = route(ctx, in[0], in[1], c.bias, c.options, c.sequences, &totals);
          double sum = 0;
          for (const double loss : r.losses.to_vector()) sum += loss;
          return std::vector<Var>{r.weights, Tensor::scalar(sum, DType::f64, Device::cpu)};
        };
        CHECK_GRADIENTS(fn, {c.x, c.gate}, {.wants = {}, .unit_cotangents = true});
      }
}

TEST_CASE("softmax router: losses count what scores choose, whatever the bias, groups or places do") {
  RouterCase c(11, 6, softmax(6, 2), DType::f64, 0.5);
  c.options.aux_loss_coef = 0.3;
  const RouterCase biased = c;
  c.bias = Tensor();
  RouterCase balanced = c, grouped = c;
  balanced.options.balanced = true;
  grouped.options.groups = 3;
  Context ctx;
  const Routing plain = c.run(ctx);
  for (const RouterCase* other : std::array<const RouterCase*, 3>{&biased, &balanced, &grouped}) {
    const Routing r = other->run(ctx);
    CHECK_BITS(r.losses, plain.losses);
    CHECK(chosen(r) != chosen(plain));
    check_against_reference(r, other->reference(), 1e-13);
  }
  // Equal shares of all experts, and of all choices.
  const Routing even = route_logits({40, 0, 0, 0, 40, 0, 0, 0, 40}, {},
                                    {.experts = 3,
                                     .top_k = 1,
                                     .scores = RouterScores::softmax,
                                     .aux_loss_coef = 0.5,
                                     .seq_aux_loss_coef = 0.25});
  CHECK(close(RouterLosses(even).aux_loss, 0.5, {1e-12, 0}));
  CHECK(close(RouterLosses(even).seq_aux_loss, 0.25, {1e-12, 0}));
}

TEST_CASE("softmax router: a device has the bits of the CPU, a replay those of the first pass") {
  struct Result {
    Routing routing;
    Tensor weights, dx, dgate;
  };
  for (const bool normalise : {false, true})
    for (const bool biased : {false, true})
      for (const unsigned losses : {0u, 1u, 8u, 15u}) {
        CAPTURE(normalise);
        CAPTURE(biased);
        CAPTURE(losses);
        RouterOptions o = softmax(12, 3, normalise, 2.5);
        set_losses(o, losses);
        RouterCase c(61, 17, o, DType::f32);
        c.sequences = Sequences::of_lengths(std::vector<std::int64_t>{20, 0, 1, 40});
        const auto run = [&](Device device, bool replay) {
          const Var x = Var::leaf(c.x.to(device)), gate = Var::leaf(c.gate.to(device));
          const Tensor bias = biased ? c.bias.to(device) : Tensor(),
                       dw = random_tensor({61, 3}, DType::f32, 8).to(device);
          reset_host_waits();
          RouterTotals totals;
          Tape tape;
          Context recorded{.tape = &tape}, plain;
          Result r{route(replay ? plain : recorded, x, gate, bias, o, c.sequences, &totals), {}, {}, {}};
          Var weights = r.routing.weights;
          if (replay) {
            RouterTotals later{totals.sums ? totals.sums.clone() : Tensor()};
            const Routing again = route(recorded, x, gate, bias, o, c.sequences, &later, &r.routing.choice);
            CHECK_FALSE(again.counts.defined());
            weights = again.weights;
          }
          tape.backward(weights, dw);
          CHECK(host_waits().empty());
          r.weights = weights.value();
          r.dx = x.grad();
          r.dgate = gate.grad();
          return r;
        };
        const Result want = run(Device::cpu, false);
        for (const auto& [device, replay] :
             {std::pair{Device::cpu, true}, {Device::guard, false}, {Device::guard, true}}) {
          const Result got = run(device, replay);
          CHECK_BITS(got.routing.choice.experts, want.routing.choice.experts);
          CHECK_BITS(got.routing.counts, want.routing.counts);
          CHECK_BITS(got.routing.losses, want.routing.losses);
          CHECK_BITS(got.weights, want.weights);
          CHECK_BITS(got.dx, want.dx);
          CHECK_BITS(got.dgate, want.dgate);
        }
      }
}

TEST_CASE("softmax router: f32 and bf16 gradients against f64" * doctest::test_suite("cuda")) {
  for_dtypes(route_devices(), [](Device device, DType dtype) {
    if (dtype == DType::f64) return;
    for (const std::int64_t tokens : {0, 1, 61})
      for (const bool normalise : {false, true})
        for (const bool losses : {false, true}) {
          CAPTURE(tokens);
          CAPTURE(normalise);
          CAPTURE(losses);
          RouterOptions o = softmax(16, 4, normalise, 2.5);
          if (losses) o.seq_aux_loss_coef = 1, o.z_loss_coef = 0.25;
          RouterCase c(tokens, 40, o, dtype);
          c.gate = random_tensor(c.gate.shape(), DType::f32, 9, 0.3);
          const Tensor dw = random_tensor({tokens, 4}, DType::f32, 8);
          const auto grads = [&](DType as, Device on) {
            const Var x = Var::leaf(c.x.to(as).to(on)),
                      gate = Var::leaf((as == DType::f64 ? c.gate.to(as) : c.gate).to(on));
            Tape tape;
            Context ctx{.tape = &tape};
            tape.backward(route(ctx, x, gate, Tensor(), o, c.sequences).weights,
                          dw.to(accumulate_dtype(as)).to(on));
            return std::pair{x.grad(), gate.grad()};
          };
          const auto [dx, dgate] = grads(dtype, device);
          const auto [want_dx, want_dgate] = grads(DType::f64, Device::cpu);
          CHECK_CLOSE(dx, want_dx, sum_tol(DType::f32, 16, 2));
          CHECK_CLOSE(dgate, want_dgate, sum_tol(DType::f32, tokens, 4));
        }
  });
}

TEST_CASE("softmax router: weights and gradients do not need scores that nothing reads") {
  const RouterOptions o = softmax(19, 4);
  CHECK_FALSE(uses_scores(o, Tensor()));
  CHECK(uses_scores(softmax(19, 4, false), Tensor()));
  CHECK(uses_scores(o, Tensor::zeros({19}, DType::f32, Device::cpu)));
  const Tensor logits = random_tensor({9, 19}, DType::f32, 1, 3);
  const auto choose = [&](const Tensor& scores) {
    const Tensor experts = Tensor::empty({9, 4}, DType::i32, Device::cpu),
                 weights = Tensor::empty({9, 4}, DType::f32, Device::cpu),
                 counts = Tensor::zeros({19}, DType::i64, Device::cpu);
    router_choose(scores, experts, weights, counts, logits, Tensor(), o, false, Tensor());
    return std::array{experts, weights, counts};
  };
  const auto with = choose(Tensor::empty({9, 19}, DType::f32, Device::cpu)), without = choose(Tensor());
  for (std::size_t i = 0; i < with.size(); ++i) CHECK_BITS(without[i], with[i]);
}

TEST_CASE("softmax router: bits after the logits do not depend on threads") {
  const int before = omp_get_max_threads();
  for (const bool normalise : {false, true}) {
    RouterOptions o = softmax(32, 4, normalise);
    set_losses(o, 15);
    const Tensor logits = random_tensor({509, 32}, DType::f32, 1),
                 dw = random_tensor({509, 4}, DType::f32, 4);
    const auto run = [&](int threads) {
      omp_set_num_threads(threads);
      return grade(logits, {}, o, dw);
    };
    const Graded one = run(1), three = run(3);
    omp_set_num_threads(before);
    CHECK_BITS(three.routing.choice.experts, one.routing.choice.experts);
    CHECK_BITS(three.routing.weights.value(), one.routing.weights.value());
    CHECK_BITS(three.routing.losses, one.routing.losses);
    CHECK_BITS(three.dlogits, one.dlogits);
  }
}
