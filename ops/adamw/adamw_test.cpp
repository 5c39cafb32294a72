#include "ops/adamw/adamw.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <utility>

#include "ops/open_gate.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

void step_one(const AdamWRange& range, const AdamWOptions& o, const UpdateGate& gate) {
  adamw_step({&range, 1}, o, adamw_schedule(o).to(range.master.device()), gate);
}

// A step through an open gate; returns whether everything written is finite.
bool update(const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& grad, const Tensor& copy,
            const AdamWOptions& o, double grad_scale = 1) {
  const UpdateGate gate = open_gate(grad_scale, w.device());
  step_one({w, m, v, grad, copy}, o, gate);
  return gate.finite.item<double>() != 0;
}

struct State {
  Tensor w, m, v, copy;
  State(const Shape& shape, DType dtype, std::uint64_t seed, bool with_copy, Device device = Device::cpu)
      : w(random_tensor(shape, dtype, seed).to(device)),
        m(random_tensor(shape, dtype, seed + 1, 0.1).to(device)),
        v(random_tensor(shape, dtype, seed + 2, 0.01)) {
    for (std::int64_t i = 0; i < v.numel(); ++i) {
      if (dtype == DType::f64)
        v.data<double>()[i] = std::abs(v.data<double>()[i]);
      else
        v.data<float>()[i] = std::abs(v.data<float>()[i]);
    }
    v = v.to(device);
    if (with_copy) copy = Tensor::zeros(shape, DType::bf16, device);
  }
  void step(const Tensor& grad, const AdamWOptions& o, double grad_scale = 1) {
    update(w, m, v, grad, copy, o, grad_scale);
  }
};

// The definition, one element at a time in f64.
struct Reference {
  std::vector<double> w, m, v;
  explicit Reference(const State& s) : w(s.w.to_vector()), m(s.m.to_vector()), v(s.v.to_vector()) {}
  void step(const std::vector<double>& grad, const AdamWOptions& o, double grad_scale) {
    const auto t = static_cast<double>(o.step);
    for (std::size_t i = 0; i < w.size(); ++i) {
      double g = grad_scale * grad[i];
      if (o.decoupled)
        w[i] *= 1 - o.lr * o.weight_decay;
      else
        g += o.weight_decay * w[i];
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      w[i] -= o.lr * (m[i] / (1 - std::pow(o.beta1, t))) /
              (std::sqrt(v[i]) / std::sqrt(1 - std::pow(o.beta2, t)) + o.eps);
    }
  }
};

// Of masters.
std::vector<DType> master_dtypes(Device device) {
  if (device == Device::cpu) return {DType::f64, DType::f32};
  return {DType::f32};
}

Tensor as_tensor(const std::vector<double>& values, const Shape& shape) {
  return Tensor::from(values, shape);
}

}  // namespace

TEST_CASE("adamw: worked table" * doctest::test_suite("cuda")) {
  struct Row {
    double grad, decoupled_w, m, v, l2_w;
  };
  const Row table[] = {{0.5, 0.99890000002, 0.05, 0.00025, 0.9990000000166667},
                       {-0.25, 0.9985337729870765, 0.02, 0.00031225, 0.9985306706608355},
                       {0.1, 0.9981186760529565, 0.028, 0.00032193775, 0.9979888916540935}};
  for (const Device device : test_devices())
    for (const DType dtype : master_dtypes(device))
      for (const bool decoupled : {true, false}) {
        const Tensor w = Tensor::scalar(1, dtype, device), m = Tensor::scalar(0, dtype, device),
                     v = Tensor::scalar(0, dtype, device);
        const Tensor copy = Tensor::scalar(0, DType::bf16, device);
        AdamWOptions o{.lr = 1e-3, .weight_decay = 0.1, .decoupled = decoupled};
        // f32: a few roundings a step of values near 1 (w), 0.05 (m) and 3e-4 (v).
        const double ulp = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
        for (const Row& row : table) {
          update(w, m, v, Tensor::scalar(row.grad, dtype, device), copy, o);
          const double want = decoupled ? row.decoupled_w : row.l2_w;
          CHECK(close(w.to_vector()[0], want, {6 * ulp + 1e-15, 0}));
          CHECK(copy.to_vector()[0] == static_cast<double>(bf16(static_cast<float>(w.to_vector()[0]))));
          if (decoupled) {
            CHECK(close(m.to_vector()[0], row.m, {6 * ulp + 1e-15, ulp}));
            CHECK(close(v.to_vector()[0], row.v, {6 * ulp + 1e-15, 0}));
          }
          ++o.step;
        }
      }
}

TEST_CASE("adamw: elementwise against a plain f64 loop" * doctest::test_suite("cuda")) {
  const std::pair<AdamWOptions, double> options[] = {
      {{.lr = 1e-2, .weight_decay = 0.1, .step = 1}, 1},
      {{.lr = 1e-2, .weight_decay = 0.1, .step = 7}, 0.39},
      {{.lr = 3e-3, .beta1 = 0, .beta2 = 0.95, .eps = 1e-3, .step = 1000}, 1},
      {{.lr = 1e-2, .weight_decay = 0.3, .decoupled = false, .step = 3}, 2},
      {{.lr = 1e-2, .weight_decay = 0, .decoupled = false, .step = 2}, 1},
  };
  for (const Device device : test_devices())
    for (const DType dtype : master_dtypes(device))
      for (const bool with_copy : {false, true})
        for (const Shape& shape : {Shape{0}, Shape{1}, Shape{13, 31}, Shape{3, 5, 7}, Shape{40009}})
          for (auto [o, scale] : options) {
            CAPTURE(shape);
            CAPTURE(o.step);
            State state(shape, dtype, 3, with_copy, device);
            Reference want(state);
            for (std::uint64_t i = 0; i < 3; ++i, ++o.step) {
              const Tensor grad = random_tensor(shape, dtype, 20 + i).to(device);
              state.step(grad, o, scale);
              want.step(grad.to_vector(), o, scale);
            }
            // Three steps of about ten roundings. m and g may cancel, so the tolerance is absolute, at their
            // size.
            const double ulp = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
            CHECK_CLOSE(state.w, as_tensor(want.w, shape), (Tol{12 * ulp, 12 * ulp}));
            CHECK_CLOSE(state.m, as_tensor(want.m, shape), (Tol{12 * ulp, 24 * ulp}));
            CHECK_CLOSE(state.v, as_tensor(want.v, shape), (Tol{24 * ulp, 0}));
            if (with_copy) CHECK_BITS(state.copy, state.w.to(DType::f32).to(DType::bf16));
          }
}

TEST_CASE("adamw: an update too small for bf16 survives in the master" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor w = Tensor::scalar(1, DType::f32, device), m = Tensor::scalar(0, DType::f32, device),
                 v = Tensor::scalar(0, DType::f32, device), copy = Tensor::scalar(1, DType::bf16, device);
    AdamWOptions o{.lr = 1e-3};
    for (; o.step <= 2; ++o.step) {
      update(w, m, v, Tensor::scalar(1, DType::f32, device), copy, o);
      CHECK(copy.to_vector()[0] == (o.step == 1 ? 1.0 : 0.99609375));
    }
    CHECK(close(w.to_vector()[0], 0.998, {1e-6, 0}));
  }
}

TEST_CASE("adamw: views with neighbours stay inside their part" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Tensor all = random_tensor({300}, DType::f32, 1).to(device), before = all.clone();
    const Tensor w = all.narrow(0, 100, 101);
    State other({101}, DType::f32, 5, false, device);
    update(w, other.m, other.v, random_tensor({101}, DType::f32, 2).to(device), Tensor(), {.lr = 0.1});
    CHECK_BITS(all.narrow(0, 0, 100), before.narrow(0, 0, 100));
    CHECK_BITS(all.narrow(0, 201, 99), before.narrow(0, 201, 99));
    CHECK_FALSE(compare_bits(w, before.narrow(0, 100, 101)).ok);
  }
}

TEST_CASE("adamw: many parameters in one call, each with its factors and its note of finiteness" *
          doctest::test_suite("cuda")) {
  const std::vector<Shape> shapes{{3}, {0}, {40, 70}, {1}, {5000}, {1024}, {7}};
  for (const Device device : test_devices())
    for (const bool decoupled : {true, false}) {
      const AdamWOptions o{.lr = 0.01, .weight_decay = 0.1, .decoupled = decoupled, .step = 3};
      std::vector<State> together, alone;
      std::vector<AdamWRange> ranges;
      const UpdateGate gate{open_gate(0.5, device).grad_scale, open_gate(1, device).go,
                            Tensor::zeros({10}, DType::f64, device)};
      gate.finite.fill(1);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const auto seed = 10 * static_cast<std::uint64_t>(i + 1);
        for (auto* states : {&together, &alone})
          states->emplace_back(shapes[i], DType::f32, seed, i % 2 == 0, device);
        const Tensor grad = random_tensor(shapes[i], DType::f32, seed + 5).to(device);
        if (i == 4) grad.narrow(0, 4999, 1).fill(HUGE_VAL);
        const double lr = i % 3 == 0 ? 1 : 0.5, decay = i == 2 ? 0 : 2;
        const State &t = together[i], &a = alone[i];
        ranges.push_back({t.w, t.m, t.v, grad, t.copy, lr, decay, static_cast<std::int64_t>(9 - i)});
        AdamWOptions own = o;
        own.lr *= lr;
        own.weight_decay *= decay;
        update(a.w, a.m, a.v, grad, a.copy, own, 0.5);
      }
      for (const bool go : {false, true}) {
        gate.go.fill(go);
        adamw_step(ranges, o, adamw_schedule(o).to(device), gate);
        CHECK(compare_bits(together[2].w, alone[2].w).ok == go);
      }
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        CAPTURE(i);
        CHECK_BITS(together[i].w, alone[i].w);
        CHECK_BITS(together[i].m, alone[i].m);
        CHECK_BITS(together[i].v, alone[i].v);
        if (i % 2 == 0) CHECK_BITS(together[i].copy, alone[i].copy);
      }
      CHECK(gate.finite.to_vector() == std::vector<double>{1, 1, 1, 1, 1, 0, 1, 1, 1, 1});
    }
}

TEST_CASE("adamw: bits do not depend on threads") {
  const int before = omp_get_max_threads();
  const Shape shape{200003};
  const Tensor grad = random_tensor(shape, DType::f32, 9);
  for (const bool decoupled : {true, false}) {
    const AdamWOptions o{.lr = 0.01, .weight_decay = 0.1, .decoupled = decoupled, .step = 5};
    State one(shape, DType::f32, 1, true), three(shape, DType::f32, 1, true);
    omp_set_num_threads(1);
    one.step(grad, o);
    omp_set_num_threads(3);
    three.step(grad, o);
    CHECK_BITS(three.w, one.w);
    CHECK_BITS(three.m, one.m);
    CHECK_BITS(three.v, one.v);
    CHECK_BITS(three.copy, one.copy);
  }
  omp_set_num_threads(before);
}

TEST_CASE("adamw: numbers that are not finite are noticed wherever they are written" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    // The last element of a size that no vector length divides, far behind the first block of a thread.
    const Shape shape{40009};
    const std::int64_t at = 40008;
    const auto finite = [&](DType dtype, bool with_copy, double weight, double gradient, AdamWOptions o) {
      State state(shape, dtype, 3, with_copy, device);
      const Tensor grad = random_tensor(shape, dtype, 4).to(device);
      state.w.narrow(0, at, 1).fill(weight);
      grad.narrow(0, at, 1).fill(gradient);
      return update(state.w, state.m, state.v, grad, state.copy, o);
    };
    const double most_f32 = std::numeric_limits<float>::max();
    for (const bool decoupled : {true, false})
      for (const bool with_copy : {false, true}) {
        const AdamWOptions o{.lr = 1e-3, .weight_decay = 0.1, .decoupled = decoupled};
        CHECK(finite(DType::f32, with_copy, 1, 1, o));
        CHECK_FALSE(finite(DType::f32, with_copy, std::nan(""), 1, o));
        CHECK_FALSE(finite(DType::f32, with_copy, HUGE_VAL, 1, o));
        CHECK_FALSE(finite(DType::f32, with_copy, 1, 1e30, o));  // only the second moment overflows
        if (device == Device::cpu) CHECK(finite(DType::f64, with_copy, 1, 1e30, o));
      }
    // Finite in f32, beyond the largest number of bf16.
    CHECK(finite(DType::f32, false, most_f32, 0, {.lr = 1e-3}));
    CHECK_FALSE(finite(DType::f32, true, most_f32, 0, {.lr = 1e-3}));
    CHECK_FALSE(finite(DType::f32, false, 1, 1, {.lr = 1e300}));
    CHECK_FALSE(finite(DType::f32, false, 1, 1, {.lr = 1e-3, .weight_decay = 1e300}));
    const Tensor zero = Tensor::zeros({1}, DType::f32, device);
    CHECK_FALSE(update(zero.clone(), zero.clone(), zero.clone(), zero, Tensor(), {.eps = 0}));  // 0 / 0
  }
}

TEST_CASE("adamw: behind a closed gate nothing is written" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    State state({5000}, DType::f32, 3, true, device);
    const std::vector<Tensor> before{state.w.clone(), state.m.clone(), state.v.clone(), state.copy.clone()};
    const UpdateGate gate = open_gate(std::nan(""), device);
    gate.go.fill(0);
    step_one({state.w, state.m, state.v, random_tensor({5000}, DType::f32, 4).to(device), state.copy}, {},
             gate);
    CHECK_BITS(state.w, before[0]);
    CHECK_BITS(state.m, before[1]);
    CHECK_BITS(state.v, before[2]);
    CHECK_BITS(state.copy, before[3]);
    CHECK(gate.finite.item<double>() == 1);
  }
}

TEST_CASE("adamw: a healthy update does not take back that numbers are not finite" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    State state({10}, DType::f32, 3, false, device);
    const UpdateGate gate = open_gate(1, device);
    gate.finite.fill(0);
    step_one({state.w, state.m, state.v, random_tensor({10}, DType::f32, 4).to(device), {}}, {}, gate);
    CHECK(gate.finite.item<double>() == 0);
  }
}

TEST_CASE("adamw: errors" * doctest::test_suite("cuda")) {
  const Tensor a = Tensor::zeros({4, 3}, DType::f32, Device::cpu),
               other = Tensor::zeros({3, 4}, DType::f32, Device::cpu), wide = a.to(DType::f64),
               half = a.to(DType::bf16), none;
  const Tensor strided = Tensor::zeros({4, 6}, DType::f32, Device::cpu).narrow(1, 0, 3);
  if (has_cuda()) {
    const Tensor d = wide.to(Device::cuda);
    CHECK_THROWS_WITH_AS(update(d, d.clone(), d.clone(), d.clone(), none, {}),
                         "adamw on cuda: want f32, got f64", Error);
  }
  CHECK_NOTHROW(update(a, a.clone(), a.clone(), a.clone(), half, {}));
  CHECK_THROWS_AS(update(none, a, a, a, none, {}), Error);
  CHECK_THROWS_AS(update(half, half, half, half, none, {}), Error);
  CHECK_THROWS_AS(update(a, other, a, a, none, {}), Error);
  CHECK_THROWS_AS(update(a, a, other, a, none, {}), Error);
  CHECK_THROWS_AS(update(a, a, a, other, none, {}), Error);
  CHECK_THROWS_AS(update(a, wide, a, a, none, {}), Error);
  CHECK_THROWS_AS(update(a, a, wide, a, none, {}), Error);
  CHECK_THROWS_AS(update(a, a, a, half, none, {}), Error);
  CHECK_THROWS_AS(update(a, a, a, none, none, {}), Error);
  CHECK_THROWS_AS(update(a, a, a, a, other.to(DType::bf16), {}), Error);
  CHECK_THROWS_AS(update(a, a, a, a, wide, {}), Error);
  CHECK_THROWS_AS(update(strided, a, a, a, none, {}), Error);
  CHECK_THROWS_AS(update(a, a, a, strided, none, {}), Error);
  CHECK_THROWS_AS(update(a, a, a, a, none, {.step = 0}), Error);
  CHECK_THROWS_AS(update(a, a, a, a, none, {.beta1 = 1}), Error);
  CHECK_THROWS_AS(update(a, a, a, a, none, {.beta2 = -0.1}), Error);
  UpdateGate gate = open_gate();
  gate.go = Tensor::zeros({1}, DType::f32, Device::cpu);
  CHECK_THROWS_AS(step_one({a, a.clone(), a.clone(), a.clone(), none}, {}, gate), Error);
  const AdamWRange second{.master = a,
                          .exp_avg = a.clone(),
                          .exp_avg_sq = a.clone(),
                          .grad = a.clone(),
                          .model_copy = {},
                          .number = 1};
  CHECK_THROWS_AS(step_one(second, {}, open_gate()), Error);  // the gate has one element
  const AdamWRange first{a, a.clone(), a.clone(), a.clone(), none};
  CHECK_THROWS_AS(adamw_step({&first, 1}, {}, Tensor::zeros({3}, DType::f64, Device::cpu), open_gate()),
                  Error);
}
