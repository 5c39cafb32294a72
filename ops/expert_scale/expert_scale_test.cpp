#include "ops/expert_scale/expert_scale.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>

#include "core/host_wait.h"
#include "ops/router/router.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

std::shared_ptr<GradNode> node_of(const Tensor& x) {
  return std::make_shared<GradNode>(x.shape(), x.dtype(), x.device(), false);
}

/// Choice j of token t is expert (5 t + 3 j) mod E, so that some experts have many tokens, and others none.
Tensor choices(std::int64_t tokens, std::int64_t k, std::int64_t experts) {
  std::vector<std::int32_t> e;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < k; ++j)
      e.push_back(static_cast<std::int32_t>((t % 7 * 5 + 3 * j) % experts));
  return Tensor::from(e, {tokens, k});
}

struct Outcome {
  Tensor y, dw, ds;
};

Outcome run(const Tensor& w, const Tensor& experts, const Tensor& scale, const Tensor& dy) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var in(w, node_of(w)), s = Var::leaf(scale);
  const Var y = expert_scale(ctx, in, experts, s);
  tape.backward(y, dy);
  return {y.value(), in.node()->grad(), s.grad()};
}

/// In f64, a choice at a time.
Outcome reference(const Tensor& w, const Tensor& experts, const Tensor& scale, const Tensor& dy) {
  const auto e = experts.to_vector(), from = w.to_vector(), s = scale.to_vector(), back = dy.to_vector();
  std::vector<double> y, dw, ds(s.size());
  for (std::size_t i = 0; i < e.size(); ++i) {
    const auto expert = static_cast<std::size_t>(e[i]);
    y.push_back(from[i] * s[expert]);
    dw.push_back(back[i] * s[expert]);
    ds[expert] += back[i] * from[i];
  }
  return {Tensor::from(y, w.shape()), Tensor::from(dw, w.shape()), Tensor::from(ds, scale.shape())};
}

}  // namespace

TEST_CASE("expert_scale: against the formulas" * doctest::test_suite("cuda")) {
  struct Size {
    std::int64_t k, experts;
  };
  // Of CUDA's blocks of experts and of choices: parts, whole ones, and more than one.
  const Size sizes[] = {{1, 1}, {2, 4}, {8, 128}, {22, 131}, {0, 3}};
  for_dtypes([&](Device device, DType dtype) {
    const DType wide = accumulate_dtype(dtype);
    for (const std::int64_t tokens : {0, 1, 64, 131})
      for (const auto& [k, experts] : sizes) {
        CAPTURE(tokens);
        CAPTURE(k);
        CAPTURE(experts);
        const Tensor e = choices(tokens, k, experts).to(device);
        const Tensor w = random_tensor({tokens, k}, wide, 1).to(device),
                     s = random_tensor({experts}, dtype, 2).to(device),
                     dy = random_tensor({tokens, k}, wide, 3).to(device);
        const Outcome got = run(w, e, s, dy), want = reference(w, e, s, dy);
        const Tol product{wide == DType::f64 ? 0x1p-52 : 0x1p-23, 0};
        CHECK_CLOSE(got.y, want.y, product);
        CHECK_CLOSE(got.dw, want.dw, product);
        CHECK_CLOSE(got.ds, want.ds, sum_tol(wide, tokens * k + 1, 4));
        CHECK(got.y.device() == device);
        const Outcome again = run(w, e, s, dy);
        CHECK_BITS(again.ds, got.ds);
      }
  });
}

TEST_CASE("expert_scale: rows of wider tensors" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor e = choices(70, 6, 9).to(device), w = random_tensor({70, 6}, DType::f32, 1).to(device),
                 s = random_tensor({9}, DType::f32, 2).to(device),
                 dy = random_tensor({70, 6}, DType::f32, 3).to(device);
    const auto window = [](const Tensor& t) { return t.narrow(-1, 1, 4); };
    const Outcome got = run(window(w), window(e), s, window(dy)),
                  want = run(window(w).clone(), window(e).clone(), s, window(dy).clone());
    CHECK(got.y.contiguous());
    CHECK_BITS(got.y, want.y);
    CHECK_BITS(got.dw, want.dw);
    CHECK_BITS(got.ds, want.ds);
  }
}

TEST_CASE("expert_scale: against finite differences, alone and behind a router") {
  const Tensor e = choices(5, 3, 6), w = random_tensor({5, 3}, DType::f64, 1),
               s = random_tensor({6}, DType::f64, 2);
  for (const std::vector<bool>& wants : {std::vector<bool>{}, {true, false}, {false, true}}) {
    GradCheckOptions options;
    options.wants = wants;
    CHECK_GRADIENTS(
        [&](Context& ctx, const std::vector<Var>& v) {
          return std::vector<Var>{expert_scale(ctx, v[0], e, v[1])};
        },
        {w, s}, options);
  }
  const RouterOptions router{.experts = 6, .top_k = 3, .scores = RouterScores::softmax};
  CHECK_GRADIENTS(
      [&](Context& ctx, const std::vector<Var>& v) {
        Routing r = route(ctx, v[0], v[1], Tensor(), router, Sequences::uniform(1, 7));
        return std::vector<Var>{expert_scale(ctx, std::move(r.weights), r.choice.experts, v[2])};
      },
      {random_tensor({7, 4}, DType::f64, 3), random_tensor({6, 4}, DType::f64, 4), s});
}

TEST_CASE("expert_scale: a scale that is a value, not a parameter" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor e = choices(66, 2, 5).to(device), w = random_tensor({66, 2}, DType::f32, 1).to(device),
                 s = random_tensor({5}, DType::bf16, 2).to(device),
                 dy = random_tensor({66, 2}, DType::f32, 3).to(device);
    const Outcome want = run(w, e, s, dy);
    CHECK(want.ds.dtype() == DType::f32);  // of a parameter
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const Var value(s, node_of(s));
    tape.backward(expert_scale(ctx, w, e, value), dy);
    CHECK_BITS(value.node()->grad(), want.ds.to(DType::bf16));
  }
}

TEST_CASE("expert_scale: the result takes the place of weights that nobody else needs" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor e = choices(3, 2, 4).to(device), s = random_tensor({4}, DType::f32, 2).to(device),
                 w = random_tensor({3, 2}, DType::f32, 1).to(device), dy = w.clone(), kept = w.clone();
    const Outcome want = run(w, e, s, dy);
    CHECK_BITS(w, kept);
    CHECK_BITS(dy, kept);
    const auto place_is_kept = [&](const Var& scale) {
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      Tensor own = w.clone();
      const void* place = own.address();
      const auto node = node_of(w);
      Var given(std::move(own), node);
      own = {};
      const Var y = expert_scale(ctx, std::move(given), e, scale);
      CHECK_BITS(y.value(), want.y);
      tape.backward(y, dy.clone());
      CHECK_BITS(node->grad(), want.dw);
      return y.value().address() == place;
    };
    CHECK(place_is_kept(s));
    CHECK_FALSE(place_is_kept(Var::leaf(s)));
  }
}

TEST_CASE("expert_scale: the host does not wait, and the guard device has the bits of the CPU") {
  const auto outcome = [](Device device) {
    const Tensor e = choices(131, 8, 32).to(device), w = random_tensor({131, 8}, DType::f32, 1).to(device),
                 s = random_tensor({32}, DType::f32, 2).to(device),
                 dy = random_tensor({131, 8}, DType::f32, 3).to(device);
    reset_host_waits();
    const Outcome o = run(w, e, s, dy);
    CHECK(host_waits().empty());
    return o;
  };
  const Outcome cpu = outcome(Device::cpu), guard = outcome(Device::guard);
  CHECK_BITS(guard.y, cpu.y);
  CHECK_BITS(guard.dw, cpu.dw);
  CHECK_BITS(guard.ds, cpu.ds);
}

TEST_CASE("expert_scale: bits do not depend on the number of threads") {
  const Tensor e = choices(1003, 8, 32), w = random_tensor({1003, 8}, DType::f32, 1),
               s = random_tensor({32}, DType::f32, 2), dy = random_tensor({1003, 8}, DType::f32, 3);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Outcome one = run(w, e, s, dy);
  omp_set_num_threads(3);
  const Outcome three = run(w, e, s, dy);
  omp_set_num_threads(before);
  CHECK_BITS(one.y, three.y);
  CHECK_BITS(one.dw, three.dw);
  CHECK_BITS(one.ds, three.ds);
}

TEST_CASE("expert_scale: errors") {
  Context ctx;
  const Tensor e = choices(3, 2, 4), w = random_tensor({3, 2}, DType::f32, 1),
               s = random_tensor({4}, DType::f32, 2);
  const auto fault = [&](const Tensor& of_w, const Tensor& of_e, const Tensor& of_s) {
    return message_of([&] { expert_scale(ctx, of_w, of_e, of_s); });
  };
  CHECK(fault(w, e, s) == "no error");
  CHECK(fault({}, e, s).starts_with("expert_scale: weights: want shape [T, k], got "));
  CHECK(fault(w.reshape({6}), e, s) == "expert_scale: weights: want shape [T, k], got [6]");
  CHECK(fault(w.to(DType::bf16), e, s) == "expert_scale: weights: want f32 or f64, got bf16");
  CHECK(fault(w, {}, s).starts_with("expert_scale: experts"));
  CHECK(fault(w, e.narrow(0, 0, 2), s).starts_with("expert_scale: experts"));
  CHECK(fault(w, w, s).starts_with("expert_scale: experts"));
  CHECK(fault(w, e, {}).starts_with("expert_scale: scale: want one number of each expert, got shape "));
  CHECK(fault(w, e, w) == "expert_scale: scale: want one number of each expert, got shape [3, 2]");
  CHECK(fault(w, e, s.to(DType::f64)) ==
        "expert_scale: scale: want f32 or bf16 beside weights of f32, got f64");
  CHECK(fault(w.to(DType::f64), e, s) == "expert_scale: scale: want f64 beside weights of f64, got f32");
}
