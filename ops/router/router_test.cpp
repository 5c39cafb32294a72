#include "ops/router/router.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <numeric>
#include <optional>

#include "core/host_wait.h"
#include "ops/open_gate.h"
#include "ops/router/test_cases.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Case = RouterCase;
using Losses = RouterLosses;

}  // namespace

TEST_CASE("router: bias chooses, unbiased scores weigh") {
  const RouterOptions o{.experts = 4, .top_k = 2, .scaling = 2.5};
  const Routing r = route_logits({0, 1, 2, 3}, {1, 0, 0, -1}, o);
  CHECK(chosen(r) == std::vector<double>{0, 2});
  const double a = 0.5, b = 1 / (1 + std::exp(-2.0));
  const auto w = r.weights.value().to_vector();
  CHECK(close(w[0], 2.5 * a / (a + b), {1e-15, 0}));
  CHECK(close(w[1], 2.5 * b / (a + b), {1e-15, 0}));
  CHECK(r.counts.to_vector() == std::vector<double>{1, 0, 1, 0});
  CHECK(Losses(r).aux_loss == 0);
  CHECK(Losses(r).seq_aux_loss == 0);
  CHECK(Losses(r).global_aux_loss == 0);
  CHECK(Losses(r).z_loss == 0);
}

TEST_CASE("router: ties go to the lowest index") {
  const std::vector<double> flat(6, 0.25), none(6, 0);
  CHECK(chosen(route_logits(flat, none, {.experts = 6, .top_k = 3})) == std::vector<double>{0, 1, 2});
  CHECK(chosen(route_logits(flat, {0, 1, 0, 1, 0, 0}, {.experts = 6, .top_k = 3})) ==
        std::vector<double>{0, 1, 3});
  CHECK(chosen(route_logits(flat, none, {.experts = 6, .top_k = 2, .groups = 3, .top_groups = 1})) ==
        std::vector<double>{0, 1});
  CHECK(chosen(route_logits(flat, {0, 0, 0, 0, 0.1, 0},
                            {.experts = 6, .top_k = 3, .groups = 3, .top_groups = 2})) ==
        std::vector<double>{0, 1, 4});
}

TEST_CASE("router: groups by their two best experts, dropped ones count as minus infinity") {
  const std::vector<double> logits(6, 0);
  // t of the groups: {5, 0, 0}, {3, 3, 0}: the pair wins over the single best.
  CHECK(chosen(route_logits(logits, {4.5, -0.5, -0.5, 2.5, 2.5, -0.5},
                            {.experts = 6, .top_k = 3, .groups = 2})) == std::vector<double>{3, 4, 5});
  // All biased scores of the kept group are negative; experts of the dropped group must still not be chosen.
  CHECK(chosen(route_logits(logits, {-3, -4, -5, -6, -6, -6}, {.experts = 6, .top_k = 3, .groups = 2})) ==
        std::vector<double>{0, 1, 2});
  // Groups of one expert.
  CHECK(chosen(route_logits(logits, {0, 3, 1, 2, 0, 0},
                            {.experts = 6, .top_k = 2, .groups = 6, .top_groups = 3})) ==
        std::vector<double>{1, 3});
}

TEST_CASE("router: against the definition" * doctest::test_suite("cuda")) {
  struct Size {
    RouterOptions o;
    std::int64_t hidden;
  };
  const Size sizes[] = {
      {{.experts = 1, .top_k = 1}, 3},
      {{.experts = 8, .top_k = 8, .normalise = false}, 1},
      {{.experts = 13, .top_k = 5, .scaling = 2.5}, 31},
      {{.experts = 12, .top_k = 5, .groups = 4, .top_groups = 2}, 17},
      {{.experts = 128, .top_k = 6, .scaling = 2.5}, 97},
      {{.experts = 64, .top_k = 22, .groups = 8, .top_groups = 3, .normalise = false, .scaling = 5}, 40},
  };
  for_dtypes(route_devices(), [&](Device device, DType dtype) {
    for (const Size& size : sizes)
      for (const std::int64_t tokens : {0, 1, 61}) {
        RouterOptions o = size.o;
        CAPTURE(o.experts);
        CAPTURE(tokens);
        for (const double coef : {0.0, 0.01}) {
          o.aux_loss_coef = coef;
          o.seq_aux_loss_coef = 2 * coef;
          o.z_loss_coef = 3 * coef;
          Case c(tokens, size.hidden, o, dtype);
          if (tokens == 61)
            c.sequences = Sequences::of_lengths(std::vector<std::int64_t>{0, 20, 1, 0, 40, 0});
          Context ctx;
          // Logits of size 1 with an error of 8 sqrt(h) f32 roundings, then a handful of operations on s.
          const double ulp = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
          const double tolerance = ulp * (16 + 8 * std::sqrt(static_cast<double>(size.hidden)));
          const Routing r = c.run(ctx, device);
          check_against_reference(r, c.reference(), 4 * tolerance);
          for (const Tensor* t : {&r.choice.experts, &r.counts, &r.losses, &r.weights.value()})
            CHECK(t->device() == device);
        }
      }
  });
}

TEST_CASE("router: balanced experts come from the place of a token, weights and losses from its scores") {
  for (const std::int64_t top_k : {1, 3, 5})
    for (const std::int64_t tokens : {0, 1, 11}) {
      CAPTURE(top_k);
      CAPTURE(tokens);
      Case c(tokens, 6, {.experts = 5, .top_k = top_k, .scaling = 2.5, .aux_loss_coef = 0.3}, DType::f64);
      c.bias = Tensor();
      Context ctx;
      const Tensor losses = c.run(ctx).losses;
      c.options.balanced = true;
      const Routing r = c.run(ctx);
      check_against_reference(r, c.reference(), 1e-14);
      CHECK_BITS(r.losses, losses);
      const auto counts = r.counts.to_vector();
      CHECK(*std::ranges::max_element(counts) - *std::ranges::min_element(counts) <= 1);
      const DiffFn fn = [&](Context& inner, const std::vector<Var>& in) {
        c.options.aux_loss_coef = 0;
        return std::vector{route(inner, in[0], in[1], c.bias, c.options, c.sequences).weights};
      };
      CHECK_GRADIENTS(fn, {c.x, c.gate});
    }
  const Case grouped(4, 3, {.experts = 6, .top_k = 4, .groups = 3, .top_groups = 2, .balanced = true},
                     DType::f32);
  Context ctx;
  CHECK(chosen(grouped.run(ctx)) == std::vector<double>{0, 1, 2, 3, 0, 1, 4, 5, 2, 3, 4, 5, 0, 1, 2, 3});
}

TEST_CASE("router: no bias is a zero bias; a strided, mixed-dtype input is the same input") {
  Case c(19, 24, {.experts = 16, .top_k = 4}, DType::bf16);
  Context ctx;
  const Routing none = route(ctx, c.x, c.gate, Tensor(), c.options, c.sequences);
  c.bias.zero();
  const Routing zero = c.run(ctx);
  CHECK_BITS(none.choice.experts, zero.choice.experts);
  CHECK_BITS(none.weights.value(), zero.weights.value());
  const Tensor wide = random_tensor({19, 60}, DType::bf16, 5);
  wide.narrow(1, 7, 24).copy_from(c.x);
  const Routing strided =
      route(ctx, wide.narrow(1, 7, 24), c.gate.to(DType::f32), Tensor(), c.options, c.sequences);
  CHECK_BITS(strided.choice.experts, zero.choice.experts);
  CHECK_CLOSE(strided.weights.value(), zero.weights.value(), (Tol{1e-5, 0}));
}

TEST_CASE("router: NaN tokens still get distinct experts") {
  Case c(3, 5, {.experts = 8, .top_k = 4, .groups = 2, .top_groups = 2}, DType::f32);
  c.x.narrow(0, 1, 1).fill(std::nan(""));
  Context ctx;
  const Routing r = c.run(ctx);
  const auto e = r.choice.experts.to_vector();
  for (std::size_t i = 4; i < 7; ++i) CHECK(e[i] < e[i + 1]);
  for (std::int64_t j = 0; j < 4; ++j) CHECK(std::isnan(r.weights.value().row<float>(1)[j]));
}

TEST_CASE("router: gradients against central differences") {
  const RouterOptions all[] = {
      {.experts = 6, .top_k = 3, .scaling = 2.5},
      {.experts = 6, .top_k = 3, .normalise = false, .scaling = 2.5},
      {.experts = 8, .top_k = 3, .groups = 4, .top_groups = 2},
      {.experts = 5, .top_k = 1},
      {.experts = 5, .top_k = 1, .normalise = false},
  };
  for (const RouterOptions& o : all) {
    CAPTURE(o.experts);
    const Case c(4, 7, o, DType::f64);
    const DiffFn fn = [&](Context& ctx, const std::vector<Var>& in) {
      return std::vector{route(ctx, in[0], in[1], c.bias, c.options, c.sequences).weights};
    };
    CHECK_GRADIENTS(fn, {c.x, c.gate});
    CHECK_GRADIENTS(fn, {c.x, c.gate}, {.wants = {true, false}});
    CHECK_GRADIENTS(fn, {c.x, c.gate}, {.wants = {false, true}});
  }
}

TEST_CASE("router: auxiliary gradients against central differences") {
  for (const int which : {1, 2, 4, 8, 15}) {
    CAPTURE(which);
    RouterOptions o{.experts = 6, .top_k = 2, .normalise = false};
    if (which & 1) o.aux_loss_coef = 0.7;
    if (which & 2) o.seq_aux_loss_coef = 1.3;
    if (which & 4) o.z_loss_coef = 0.4;
    if (which & 8) o.global_aux_loss_coef = 0.9;
    Case c(9, 5, o, DType::f64);
    c.sequences = Sequences::of_lengths(std::vector<std::int64_t>{4, 0, 5});
    const DiffFn fn = [&](Context& ctx, const std::vector<Var>& in) {
      RouterTotals totals{Tensor::from<std::int64_t>({7, 0, 1, 4, 0, 2, 7}, {7})};
      const Routing r = route(ctx, in[0], in[1], c.bias, c.options, c.sequences, &totals);
      const double sum =
          Losses(r).aux_loss + Losses(r).seq_aux_loss + Losses(r).global_aux_loss + Losses(r).z_loss;
      return std::vector<Var>{r.weights, Tensor::scalar(sum, DType::f64, Device::cpu)};
    };
    CHECK_GRADIENTS(fn, {c.x, c.gate}, {.wants = {}, .unit_cotangents = true});
  }
}

TEST_CASE("router: the global loss counts the microbatches so far, ragged ones by their tokens" *
          doctest::test_suite("cuda")) {
  for_dtypes(route_devices(), [](Device device, DType dtype) {
    Case c(61, 17, {.experts = 12, .top_k = 5, .groups = 4, .top_groups = 2, .global_aux_loss_coef = 0.7},
           dtype);
    c.sequences = Sequences::of_lengths(std::vector<std::int64_t>{20, 0, 1, 40});
    const RoutingReference want = c.reference();
    const double tolerance = (dtype == DType::f64 ? 0x1p-53 : 0x1p-24) * 64;
    RouterTotals totals;
    Context ctx;
    for (std::int64_t q = 0; q < c.sequences.count(); ++q) {
      CAPTURE(q);
      const std::int64_t begin = c.sequences.begin(q), tokens = c.sequences.length(q);
      const Tensor x = c.x.narrow(0, begin, tokens).to(device);
      const Routing r = route(ctx, x, c.gate.to(device), c.bias.to(device), c.options,
                              Sequences::uniform(1, tokens), &totals);
      CHECK(close(Losses(r).global_aux_loss, want.global_aux_loss[static_cast<std::size_t>(q)],
                  {tolerance, 0}));
      CHECK(totals.sums.device() == device);
      CHECK(totals.sums.to_vector()[12] == static_cast<double>(begin + tokens));
    }
    const auto sums = totals.sums.to_vector();
    CHECK(std::accumulate(sums.begin(), sums.end() - 1, 0.0) == 61 * 5);
  });
}

TEST_CASE("router: for one microbatch the global loss is aux_loss; without coefficient it has no state") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const Case c(23, 9, {.experts = 8, .top_k = 3}, dtype);
    const auto run = [&](const RouterOptions& o, RouterTotals* totals) {
      const Var x = Var::leaf(c.x);
      Tape tape;
      Context ctx{.tape = &tape};
      const Routing r = route(ctx, x, c.gate, c.bias, o, c.sequences, totals);
      tape.backward(r.weights, Tensor::zeros(r.weights.shape(), dtype, Device::cpu));
      return std::pair{r, x.node()->filled() ? x.grad() : Tensor()};
    };
    RouterOptions o = c.options;
    RouterTotals totals;
    o.aux_loss_coef = 0.3;
    const auto [aux, aux_grad] = run(o, &totals);
    CHECK(Losses(aux).global_aux_loss == 0);
    CHECK_FALSE(totals.sums.defined());
    o.aux_loss_coef = 0;
    o.global_aux_loss_coef = 0.3;
    CHECK(Losses(run(o, nullptr).first).global_aux_loss == 0);
    const auto [global, global_grad] = run(o, &totals);
    CHECK(Losses(global).aux_loss == 0);
    CHECK(Losses(global).global_aux_loss == Losses(aux).aux_loss);
    CHECK_BITS(global_grad, aux_grad);
    // Repeating the microbatch keeps the balance; a new total contains neither microbatch.
    const auto [again, again_grad] = run(o, &totals);
    CHECK(Losses(again).global_aux_loss == Losses(aux).aux_loss);
    CHECK(totals.sums.to_vector().back() == 46);
    totals = {};
    CHECK(Losses(run(o, &totals).first).global_aux_loss == Losses(aux).aux_loss);
  }
}

TEST_CASE("router: a replay counts nothing, and later microbatches do not change its gradient") {
  const Case c(9, 5,
               {.experts = 6,
                .top_k = 2,
                .aux_loss_coef = 0.5,
                .seq_aux_loss_coef = 0.3,
                .global_aux_loss_coef = 0.8,
                .z_loss_coef = 0.1},
               DType::f64);
  const std::vector<std::int64_t> lengths{5, 9, 7};
  // All forward passes come before the first backward pass, as in a pipeline.
  const auto gate_grad = [&](bool through_checkpoint, RouterTotals& totals) {
    const Var gate = Var::leaf(c.gate);
    std::vector<Tape> tapes(lengths.size());
    std::vector<std::optional<RouterChoice>> choices(lengths.size());
    std::vector<Var> results;
    for (std::size_t m = 0; m < lengths.size(); ++m) {
      Context ctx{.tape = &tapes[m]};
      const Recomputed block = [&, m](Context& inner, const Var& in) {
        const bool first = !choices[m];
        const Routing r = route(inner, in, gate, c.bias, c.options, Sequences::uniform(1, lengths[m]),
                                &totals, first ? nullptr : &*choices[m]);
        CHECK(r.counts.defined() == first);
        choices[m] = r.choice;
        return r.weights;
      };
      const Var in = Var::leaf(c.x.narrow(0, 0, lengths[m]).clone());
      results.push_back(through_checkpoint ? checkpoint(ctx, "block", block, in) : block(ctx, in));
    }
    for (std::size_t m = 0; m < lengths.size(); ++m)
      tapes[m].backward(results[m], random_tensor(results[m].shape(), DType::f64, 9));
    return gate.grad();
  };
  RouterTotals plain, replayed;
  CHECK_BITS(gate_grad(true, replayed), gate_grad(false, plain));
  CHECK_BITS(replayed.sums, plain.sums);
  CHECK(replayed.sums.to_vector().back() == 21);
  RouterTotals totals;
  Context ctx;
  const RouterChoice other = route(ctx, c.x, c.gate, c.bias, c.options, c.sequences, &totals).choice;
  CHECK_THROWS_AS(
      route(ctx, c.x.narrow(0, 0, 4), c.gate, c.bias, c.options, Sequences::uniform(1, 4), &totals, &other),
      Error);
}

TEST_CASE("router: a balanced batch has its coefficient as loss") {
  // Token t prefers expert t by far: every expert is counted once and holds the same share.
  std::vector<double> logits(16, -40);
  for (std::size_t i = 0; i < 4; ++i) logits[i * 5] = 40;
  const Routing r = route_logits(logits, {9, 0, 0, 0},
                                 {.experts = 4, .top_k = 1, .aux_loss_coef = 0.5, .seq_aux_loss_coef = 0.25});
  CHECK(chosen(r) == std::vector<double>{0, 0, 0, 0});
  CHECK(close(Losses(r).aux_loss, 0.5, {1e-12, 0}));
  CHECK(close(Losses(r).seq_aux_loss, 0.25, {1e-12, 0}));
}

TEST_CASE("router: auxiliary gradients come once, scaled, even where the weights get none") {
  Case c(9, 5, {.experts = 6, .top_k = 2, .aux_loss_coef = 1, .z_loss_coef = 1}, DType::f64);
  const auto gate_grad = [&](double scale, bool through_checkpoint, bool use_weights) {
    Case scaled = c;
    scaled.options.aux_grad_scale = scale;
    const Var gate = Var::leaf(c.gate), x = Var::leaf(c.x);
    Tape tape;
    Context ctx{.tape = &tape};
    const Recomputed block = [&](Context& inner, const Var& in) {
      const Var w = route(inner, in, gate, c.bias, scaled.options, c.sequences).weights;
      return use_weights ? w : in;
    };
    const Var y = through_checkpoint ? checkpoint(ctx, "block", block, x) : block(ctx, x);
    Tensor dy = Tensor::zeros(y.shape(), DType::f64, Device::cpu);
    if (use_weights) dy = random_tensor(y.shape(), DType::f64, 9);
    tape.backward(y, dy);
    return gate.node()->filled() ? gate.grad() : Tensor();
  };
  const Tensor one = gate_grad(1, false, false);
  REQUIRE(one.defined());
  CHECK(relative_error(one, Tensor::zeros(one.shape(), DType::f64, Device::cpu)) > 1e-3);
  Tensor three = one.clone();
  for (std::int64_t i = 0; i < three.numel(); ++i) three.data<double>()[i] *= 3;
  CHECK_CLOSE(gate_grad(3, false, false), three, (Tol{1e-13, 1e-13}));
  CHECK_BITS(gate_grad(1, true, false), one);
  CHECK_BITS(gate_grad(1, true, true), gate_grad(1, false, true));
  CHECK_CLOSE(gate_grad(0, false, false), Tensor::zeros(one.shape(), DType::f64, Device::cpu), Tol{});
  c.options.aux_loss_coef = c.options.z_loss_coef = 0;
  CHECK_FALSE(gate_grad(1, false, false).defined());
}

TEST_CASE("router: f32 and bf16 gradients against f64" * doctest::test_suite("cuda")) {
  for_dtypes(route_devices(), [](Device device, DType dtype) {
    if (dtype == DType::f64) return;
    for (const std::int64_t tokens : {0, 1, 61})
      for (const auto& [leaf, wide_gate] :
           {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
        if (wide_gate && dtype == DType::f32) continue;
        CAPTURE(tokens);
        CAPTURE(leaf);
        CAPTURE(wide_gate);
        const RouterOptions o{
            .experts = 16, .top_k = 4, .scaling = 2.5, .seq_aux_loss_coef = 1, .z_loss_coef = 1};
        Case c(tokens, 40, o, dtype);
        if (wide_gate) c.gate = random_tensor(c.gate.shape(), DType::f32, 9, 0.3);
        const Tensor dw = random_tensor({tokens, 4}, DType::f32, 8);
        const auto grads = [&](DType as, Device on) {
          const auto give = [&](const Tensor& t) {
            const bool leafy = leaf || as == DType::f64;
            return Var(t.to(on), std::make_shared<GradNode>(t.shape(), t.dtype(), on, leafy));
          };
          const Var x = give(c.x.to(as)), gate = give(as == DType::f64 ? c.gate.to(as) : c.gate);
          Tape tape;
          Context ctx{.tape = &tape};
          tape.backward(route(ctx, x, gate, c.bias.to(accumulate_dtype(as)).to(on), o, c.sequences).weights,
                        dw.to(accumulate_dtype(as)).to(on));
          return std::pair{x.grad(), gate.grad()};
        };
        const auto [dx, dgate] = grads(dtype, device);
        const auto [want_dx, want_dgate] = grads(DType::f64, Device::cpu);
        CHECK(dx.dtype() == (leaf ? DType::f32 : dtype));
        const DType stored = leaf ? DType::f32 : dtype;
        CHECK_CLOSE(dx, want_dx, sum_tol(stored, 16, 2));
        CHECK_CLOSE(dgate, want_dgate, sum_tol(wide_gate ? DType::f32 : stored, tokens, 4));
      }
  });
}

TEST_CASE("router: bits after the logits do not depend on threads") {
  const int before = omp_get_max_threads();
  // With a diagonal gate both products are exact for any order of summation (oneDNN chooses the order).
  const RouterOptions o{.experts = 32,
                        .top_k = 4,
                        .groups = 4,
                        .top_groups = 2,
                        .aux_loss_coef = 0.1,
                        .seq_aux_loss_coef = 0.1,
                        .global_aux_loss_coef = 0.1,
                        .z_loss_coef = 0.1};
  Case c(509, 32, o, DType::f32);
  c.gate = Tensor::zeros({32, 32}, DType::f32, Device::cpu);
  for (std::int64_t i = 0; i < 32; ++i) c.gate.data<float>()[i * 33] = i % 2 == 0 ? 2 : -0.5;
  c.sequences = Sequences::of_lengths(std::vector<std::int64_t>{100, 400, 9});
  struct Result {
    Routing routing;
    Tensor dx;
  };
  const auto run = [&](int threads) {
    omp_set_num_threads(threads);
    const Var x = Var::leaf(c.x);
    Tape tape;
    Context ctx{.tape = &tape};
    RouterTotals totals;
    Result r{route(ctx, x, c.gate, c.bias, o, c.sequences, &totals), {}};
    tape.backward(r.routing.weights, random_tensor({509, 4}, DType::f32, 4));
    r.dx = x.grad();
    return r;
  };
  const Result one = run(1), three = run(3);
  omp_set_num_threads(before);
  CHECK_BITS(three.routing.choice.experts, one.routing.choice.experts);
  CHECK_BITS(three.routing.weights.value(), one.routing.weights.value());
  CHECK_BITS(three.routing.counts, one.routing.counts);
  CHECK(Losses(three.routing).aux_loss == Losses(one.routing).aux_loss);
  CHECK(Losses(three.routing).seq_aux_loss == Losses(one.routing).seq_aux_loss);
  CHECK(Losses(three.routing).global_aux_loss == Losses(one.routing).global_aux_loss);
  CHECK(Losses(three.routing).z_loss == Losses(one.routing).z_loss);
  CHECK_BITS(three.dx, one.dx);
}

TEST_CASE("router: a device has the bits of the CPU, and the host reads nothing from it") {
  struct Result {
    Routing routing;
    Tensor sums, dx, dgate, bias;
  };
  for (const bool balanced : {false, true})
    for (const unsigned losses : {0u, 1u, 2u, 4u, 8u, 15u}) {
      CAPTURE(balanced);
      CAPTURE(losses);
      RouterOptions o{.experts = 12, .top_k = 3, .groups = 4, .top_groups = 2, .balanced = balanced};
      if (losses & 1) o.aux_loss_coef = 0.7;
      if (losses & 2) o.seq_aux_loss_coef = 1.3;
      if (losses & 4) o.global_aux_loss_coef = 0.9;
      if (losses & 8) o.z_loss_coef = 0.4;
      Case c(61, 17, o, DType::f32);
      c.sequences = Sequences::of_lengths(std::vector<std::int64_t>{20, 0, 1, 40});
      const auto run = [&](Device device, bool replay) {
        const Var x = Var::leaf(c.x.to(device)), gate = Var::leaf(c.gate.to(device));
        const Tensor bias = c.bias.to(device).clone(), dw = random_tensor({61, 3}, DType::f32, 8).to(device);
        const Tensor all_counts = Tensor::zeros({12}, DType::i64, device);
        const UpdateGate update = open_gate(1, device);
        reset_host_waits();
        Tape tape;
        Context ctx{.tape = &tape};
        RouterTotals totals;
        Result r{route(ctx, x, gate, bias, o, c.sequences, &totals), {}, {}, {}, bias};
        if (replay) {
          Tape again;
          Context second{.tape = &again};
          again.backward(route(second, x, gate, bias, o, c.sequences, &totals, &r.routing.choice).weights,
                         dw);
        } else {
          tape.backward(r.routing.weights, dw);
        }
        add_counts(all_counts, r.routing.counts);
        update_expert_bias(bias, all_counts, 0.25, update);
        CHECK(host_waits().empty());
        r.sums = totals.sums;
        r.dx = x.grad();
        r.dgate = gate.grad();
        return r;
      };
      for (const bool replay : {false, true}) {
        const Result got = run(Device::guard, replay), want = run(Device::cpu, replay);
        CHECK_BITS(got.routing.choice.experts, want.routing.choice.experts);
        CHECK_BITS(got.routing.weights.value(), want.routing.weights.value());
        CHECK_BITS(got.routing.counts, want.routing.counts);
        CHECK_BITS(got.routing.losses, want.routing.losses);
        REQUIRE(got.sums.defined() == ((losses & 4) != 0));
        if (got.sums) CHECK_BITS(got.sums, want.sums);
        CHECK_BITS(got.dx, want.dx);
        CHECK_BITS(got.dgate, want.dgate);
        CHECK_BITS(got.bias, want.bias);
      }
    }
}

TEST_CASE("router: expert bias moves towards balance" * doctest::test_suite("cuda")) {
  // Returns whether all biases are finite.
  const auto update = [](const Tensor& bias, const std::vector<std::int64_t>& counts, double rate) {
    const UpdateGate gate = open_gate(1, bias.device());
    update_expert_bias(bias, Tensor::from(counts, {std::ssize(counts)}).to(bias.device()), rate, gate);
    return gate.finite.item<double>() != 0;
  };
  for_dtypes(test_devices("router"), [&](Device device, DType dtype) {
    if (dtype == DType::bf16) return;
    const Tensor bias = Tensor::from<double>({0, 0.5, -0.5, 1}, {4}).to(dtype).to(device);
    CHECK(update(bias, {10, 0, 5, 5}, 0.25));
    CHECK(bias.to_vector() == std::vector<double>{-0.25, 0.75, -0.5, 1});
    const bool fits = dtype == DType::f64;
    CHECK(update(bias, {10, 0, 5, 5}, 1e300) == fits);
  });
  // f32 cannot represent the mean 1/3, and f64 cannot represent the counts beyond 2^53.
  const Tensor third = Tensor::zeros({3}, DType::f32, Device::cpu);
  update(third, {0, 1, 0}, 1);
  CHECK(third.to_vector() == std::vector<double>{1, -1, 1});
  const std::int64_t big = std::int64_t{1} << 60;
  const Tensor pair = Tensor::zeros({2}, DType::f32, Device::cpu);
  update(pair, {big, big + 1}, 1);
  CHECK(pair.to_vector() == std::vector<double>{1, -1});
  CHECK(update(Tensor::zeros({0}, DType::f32, Device::cpu), {}, 1));
}

TEST_CASE("router: expert bias behind a closed gate stays, and so does what is known to be not finite" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("router")) {
    const Tensor bias = Tensor::from<float>({0, 0.5}, {2}).to(device);
    const Tensor counts = Tensor::from<std::int64_t>({3, 1}, {2}).to(device);
    UpdateGate gate = open_gate(1, device);
    gate.go.fill(0);
    update_expert_bias(bias, counts, INFINITY, gate);
    CHECK(bias.to_vector() == std::vector<double>{0, 0.5});
    CHECK(gate.finite.item<double>() == 1);
    gate.go.fill(1);
    gate.finite.fill(0);
    update_expert_bias(bias, counts, 0.5, gate);
    CHECK(bias.to_vector() == std::vector<double>{-0.5, 1});
    CHECK(gate.finite.item<double>() == 0);
  }
}

TEST_CASE("router: errors") {
  Context ctx;
  const Case c(4, 3, {.experts = 8, .top_k = 2}, DType::f32);
  const auto with = [&](RouterOptions o) { return route(ctx, c.x, c.gate, c.bias, o, c.sequences); };
  CHECK_NOTHROW(with({.experts = 8, .top_k = 2, .groups = 4, .top_groups = 1}));
  CHECK_THROWS_AS(with({.experts = 0, .top_k = 1}), Error);
  CHECK_THROWS_AS(with({.experts = 8, .top_k = 0}), Error);
  CHECK_THROWS_AS(with({.experts = 8, .top_k = 9}), Error);
  CHECK_THROWS_AS(with({.experts = 8, .top_k = 2, .groups = 0}), Error);
  CHECK_THROWS_AS(with({.experts = 8, .top_k = 2, .groups = 3}), Error);
  CHECK_THROWS_AS(with({.experts = 8, .top_k = 2, .groups = 4, .top_groups = 5}), Error);
  CHECK_THROWS_AS(with({.experts = 8, .top_k = 2, .groups = 4, .top_groups = 0}), Error);
  CHECK_THROWS_WITH_AS(with({.experts = 8, .top_k = 3, .groups = 4, .top_groups = 1}),
                       "route: top_k 3 of the 2 experts in 1 groups", Error);
  CHECK_THROWS_AS(with({.experts = 4, .top_k = 2}), Error);

  const auto call = [&](const Tensor& x, const Tensor& gate, const Tensor& bias, const Sequences& s) {
    return route(ctx, x, gate, bias, c.options, s);
  };
  CHECK_THROWS_AS(call(Tensor(), c.gate, c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(c.x.reshape({12}), c.gate, c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, Tensor(), c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, Tensor::zeros({8, 4}, DType::f32, Device::cpu), c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, c.gate.to(DType::f64), c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(Tensor::zeros({4, 3}, DType::i32, Device::cpu), c.gate, c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, c.gate, c.bias.to(DType::bf16), c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, c.gate, Tensor::zeros({7}, DType::f32, Device::cpu), c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, c.gate, c.bias, Sequences::uniform(1, 3)), Error);
  RouterOptions global = c.options;
  global.global_aux_loss_coef = 1;
  RouterTotals totals{Tensor::zeros({8}, DType::i64, Device::cpu)};
  CHECK_THROWS_AS(route(ctx, c.x, c.gate, c.bias, global, c.sequences, &totals), Error);

  const Tensor counts = Tensor::zeros({8}, DType::i64, Device::cpu);
  CHECK_THROWS_AS(update_expert_bias(Tensor(), counts, 1, open_gate()), Error);
  CHECK_THROWS_AS(update_expert_bias(c.bias.to(DType::bf16), counts, 1, open_gate()), Error);
  CHECK_THROWS_AS(update_expert_bias(c.bias, Tensor::zeros({8}, DType::i32, Device::cpu), 1, open_gate()),
                  Error);
  CHECK_THROWS_AS(update_expert_bias(c.bias, Tensor::zeros({7}, DType::i64, Device::cpu), 1, open_gate()),
                  Error);
  UpdateGate none;
  CHECK_THROWS_AS(update_expert_bias(c.bias, counts, 1, none), Error);
}
