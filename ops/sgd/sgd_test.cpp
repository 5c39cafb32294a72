#include "ops/sgd/sgd.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <utility>

#include "core/kernel.h"
#include "ops/open_gate.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

void step_one(const SgdRange& range, const SgdOptions& o, const UpdateGate& gate) {
  sgd_step({&range, 1}, o, sgd_schedule(o).to(range.master.device()), gate);
}

// A step through an open gate; returns whether everything written is finite.
bool update(const Tensor& w, const Tensor& buffer, const Tensor& grad, const Tensor& copy,
            const SgdOptions& o, double grad_scale = 1) {
  const UpdateGate gate = open_gate(grad_scale, w.device());
  step_one({w, buffer, grad, copy}, o, gate);
  return gate.finite.item<double>() != 0;
}

// The definition, one element at a time in f64.
void reference_step(std::vector<double>& w, std::vector<double>& buffer, const std::vector<double>& grad,
                    const SgdOptions& o, double grad_scale) {
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double g = grad_scale * grad[i] + o.weight_decay * w[i];
    double direction = g;
    if (o.momentum != 0) {
      buffer[i] = o.first ? g : o.momentum * buffer[i] + g;
      direction = o.nesterov ? g + o.momentum * buffer[i] : buffer[i];
    }
    w[i] -= o.lr * direction;
  }
}

// Of masters.
std::vector<DType> master_dtypes(Device device) {
  if (device == Device::cpu) return {DType::f64, DType::f32};
  return {DType::f32};
}

}  // namespace

TEST_CASE("sgd: worked table" * doctest::test_suite("cuda")) {
  const double grads[] = {0.5, -0.25, 0.1}, weights[] = {0.999975, 0.999965, 0.999951},
               buffers[] = {0.5, 0.2, 0.28};
  for (const Device device : test_devices("sgd"))
    for (const DType dtype : master_dtypes(device)) {
      const double ulp = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
      const Tensor w = Tensor::scalar(1, dtype, device), copy = Tensor::scalar(0, DType::bf16, device);
      const Tensor buffer = Tensor::scalar(1e30, dtype, device);  // the first step must not read it
      for (int i = 0; i < 3; ++i) {
        update(w, buffer, Tensor::scalar(grads[i], dtype, device), copy,
               {.lr = 5e-5, .momentum = 0.9, .first = i == 0});
        CHECK(close(w.to_vector()[0], weights[i], {4 * ulp, 0}));
        CHECK(close(buffer.to_vector()[0], buffers[i], {6 * ulp, 0}));
        CHECK(copy.to_vector()[0] == 1.0);
      }
    }
}

TEST_CASE("sgd: elementwise against a plain f64 loop" * doctest::test_suite("cuda")) {
  const std::pair<SgdOptions, double> options[] = {
      {{.lr = 0.1}, 1},
      {{.lr = 0.1, .weight_decay = 0.2}, 0.5},
      {{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .first = true}, 1},
      {{.lr = 0.1, .momentum = 0.9}, 0.3},
      {{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}, 1},
      {{.lr = 0.1, .momentum = 0.9, .first = true, .nesterov = true}, 1},
  };
  for (const Device device : test_devices("sgd"))
    for (const DType dtype : master_dtypes(device))
      for (const bool with_copy : {false, true})
        for (const Shape& shape : {Shape{0}, Shape{1}, Shape{13, 31}, Shape{40009}})
          for (const auto& [o, scale] : options) {
            CAPTURE(device);
            CAPTURE(shape);
            const auto random = [&](std::uint64_t seed) {
              return random_tensor(shape, dtype, seed).to(device);
            };
            const Tensor w = random(1), buffer = random(2), grad = random(3);
            const Tensor copy = with_copy ? Tensor::zeros(shape, DType::bf16, device) : Tensor();
            auto want_w = w.to_vector(), want_buffer = buffer.to_vector();
            reference_step(want_w, want_buffer, grad.to_vector(), o, scale);
            update(w, o.momentum == 0 ? Tensor() : buffer, grad, copy, o, scale);
            const double ulp = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
            CHECK_CLOSE(w, Tensor::from(want_w, shape), (Tol{4 * ulp, 4 * ulp}));
            CHECK_CLOSE(buffer, Tensor::from(want_buffer, shape), (Tol{4 * ulp, 8 * ulp}));
            if (with_copy) CHECK_BITS(copy, w.to(DType::f32).to(DType::bf16));
          }
}

TEST_CASE("sgd: many parameters in one call, each with its factors and its note of finiteness" *
          doctest::test_suite("cuda")) {
  const SgdOptions o{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.2};
  const std::vector<std::int64_t> sizes{0, 500, 1000, 1, 3000, 1024};
  for (const Device device : test_devices("sgd")) {
    CAPTURE(device);
    std::vector<SgdRange> ranges;
    std::vector<Tensor> weights, wanted;
    UpdateGate gate = open_gate(0.5, device);
    gate.finite = Tensor::zeros({6}, DType::f64, device);
    gate.finite.fill(1);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto seed = 10 * static_cast<std::uint64_t>(i);
      const double lr = i == 1 ? 0.5 : 1, decay = i == 2 ? 0 : 2;
      const auto random = [&](std::uint64_t add) {
        return random_tensor({sizes[i]}, DType::f32, seed + add).to(device);
      };
      const Tensor w = random(0), buffer = random(1), grad = random(2);
      if (i == 2) grad.narrow(0, 999, 1).fill(HUGE_VAL);
      weights.push_back(w);
      wanted.push_back(w.clone());
      SgdOptions own = o;
      own.lr *= lr;
      own.weight_decay *= decay;
      update(wanted.back(), buffer.clone(), grad, {}, own, 0.5);
      ranges.push_back({w, buffer, grad, {}, lr, decay, 5 - static_cast<std::int64_t>(i)});
    }
    sgd_step(ranges, o, sgd_schedule(o).to(device), gate);
    for (std::size_t i = 0; i < sizes.size(); ++i) CHECK_BITS(weights[i], wanted[i]);
    CHECK(gate.finite.to_vector() == std::vector<double>{1, 1, 1, 0, 1, 1});
  }
}

TEST_CASE("sgd: views with neighbours stay inside their part" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("sgd"))
    for (const std::int64_t start : {100, 101}) {
      CAPTURE(device);
      CAPTURE(start);
      const auto random = [&](std::uint64_t seed) {
        return random_tensor({300}, DType::f32, seed).to(device);
      };
      const Tensor all = random(1), buffers = random(2), grad = random(3), before = all.clone();
      const auto part = [&](const Tensor& t) { return t.narrow(0, start, 101); };
      const Tensor w = part(all).clone(), buffer = part(buffers).clone();
      const SgdOptions o{.lr = 0.1, .momentum = 0.9};
      update(w, buffer, part(grad).clone(), Tensor(), o);
      update(part(all), part(buffers), part(grad), Tensor(), o);
      CHECK_BITS(part(all), w);
      CHECK_BITS(part(buffers), buffer);
      CHECK_BITS(all.narrow(0, 0, start), before.narrow(0, 0, start));
      CHECK_BITS(all.narrow(0, start + 101, 99 - start % 100),
                 before.narrow(0, start + 101, 99 - start % 100));
    }
}

TEST_CASE("sgd: bits do not depend on threads") {
  const int before = omp_get_max_threads();
  const Shape shape{200003};
  const Tensor grad = random_tensor(shape, DType::f32, 9);
  std::vector<Tensor> w, buffer;
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    w.push_back(random_tensor(shape, DType::f32, 1));
    buffer.push_back(random_tensor(shape, DType::f32, 2));
    update(w.back(), buffer.back(), grad, Tensor(), {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
  }
  omp_set_num_threads(before);
  CHECK_BITS(w[1], w[0]);
  CHECK_BITS(buffer[1], buffer[0]);
}

TEST_CASE("sgd: numbers that are not finite are noticed wherever they are written" *
          doctest::test_suite("cuda")) {
  const Shape shape{40009};
  for (const Device device : test_devices("sgd")) {
    CAPTURE(device);
    const auto finite = [&](bool with_copy, double weight, double momentum_sum, SgdOptions o) {
      const auto random = [&](std::uint64_t seed) {
        return random_tensor(shape, DType::f32, seed).to(device);
      };
      const Tensor w = random(1), buffer = random(2);
      const Tensor copy = with_copy ? Tensor::zeros(shape, DType::bf16, device) : Tensor();
      w.narrow(0, 40008, 1).fill(weight);
      buffer.narrow(0, 40008, 1).fill(momentum_sum);
      return update(w, buffer, random(3), copy, o);
    };
    const double most = std::numeric_limits<float>::max();
    for (const bool with_copy : {false, true})
      for (const double momentum : {0.0, 0.9}) {
        const SgdOptions o{.lr = 1e-30, .momentum = momentum};
        CHECK(finite(with_copy, 1, 1, o));
        CHECK_FALSE(finite(with_copy, -HUGE_VAL, 1, o));
        CHECK(finite(with_copy, most, 1, o) == !with_copy);  // rounds to an infinite bf16 number
        CHECK(finite(with_copy, 1, HUGE_VAL, o) == (momentum == 0));
      }
    CHECK_FALSE(finite(false, 1, 1, {.lr = 1e300}));
    for (const std::int64_t start : {0, 1})  // of a 16-byte access, and not
      for (const std::int64_t at : {0, 1, 2, 3}) {
        const auto window = [start](const Tensor& t) { return t.narrow(0, start, 8); };
        const Tensor w = window(random_tensor({9}, DType::f32, 1).to(device)),
                     zero = Tensor::zeros({8}, DType::f32, device);
        CHECK(update(w, {}, zero, {}, {}));
        w.narrow(0, at, 1).fill(std::nan(""));
        CHECK_FALSE(update(w, {}, zero, {}, {}));
      }
  }
}

TEST_CASE("sgd: behind a closed gate nothing is written" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("sgd")) {
    CAPTURE(device);
    const auto random = [&](std::uint64_t seed) {
      return random_tensor({5000}, DType::f32, seed).to(device);
    };
    const Tensor w = random(1), buffer = random(2), copy = w.to(DType::bf16);
    const std::vector<Tensor> before{w.clone(), buffer.clone(), copy.clone()};
    const UpdateGate gate = open_gate(std::nan(""), device);
    gate.go.fill(0);
    step_one({w, buffer, random(3), copy}, {.momentum = 0.9}, gate);
    CHECK_BITS(w, before[0]);
    CHECK_BITS(buffer, before[1]);
    CHECK_BITS(copy, before[2]);
    CHECK(gate.finite.item<double>() == 1);
  }
}

TEST_CASE("sgd: errors" * doctest::test_suite("cuda")) {
  const Tensor a = Tensor::zeros({4, 3}, DType::f32, Device::cpu),
               other = Tensor::zeros({3, 4}, DType::f32, Device::cpu), wide = a.to(DType::f64),
               half = a.to(DType::bf16), none;
  const Tensor strided = Tensor::zeros({4, 6}, DType::f32, Device::cpu).narrow(1, 0, 3);
  const SgdOptions o{.momentum = 0.9};
  if (has_cuda() && runs_on_cuda("sgd")) {
    const Tensor d = wide.to(Device::cuda);
    CHECK_THROWS_WITH_AS(update(d, d.clone(), d.clone(), none, o), "sgd on cuda: want f32, got f64", Error);
  }
  CHECK_NOTHROW(update(a, a.clone(), a.clone(), half, o));
  CHECK_NOTHROW(update(a, none, a.clone(), none, {}));
  CHECK_THROWS_AS(update(none, a, a, none, o), Error);
  CHECK_THROWS_AS(update(half, half, half, none, o), Error);
  CHECK_THROWS_AS(update(a, other, a, none, o), Error);
  CHECK_THROWS_AS(update(a, wide, a, none, o), Error);
  CHECK_THROWS_AS(update(a, none, a, none, o), Error);
  CHECK_THROWS_AS(update(a, a, other, none, o), Error);
  CHECK_THROWS_AS(update(a, a, half, none, o), Error);
  CHECK_THROWS_AS(update(a, a, a, wide, o), Error);
  CHECK_THROWS_AS(update(strided, a, a, none, o), Error);
  CHECK_THROWS_AS(update(a, a, a, none, {.momentum = 1}), Error);
  CHECK_THROWS_AS(update(a, a, a, none, {.nesterov = true}), Error);
  UpdateGate gate = open_gate();
  gate.finite = Tensor();
  CHECK_THROWS_AS(step_one({a, none, a.clone(), none}, {}, gate), Error);
}
