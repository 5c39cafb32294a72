#include "ops/global_norm/global_norm.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
double reference_norm(const std::vector<Tensor>& tensors) {
  long double sum = 0;
  for (const Tensor& t : tensors)
    for (const double v : t.to_vector()) sum += static_cast<long double>(v) * v;
  return static_cast<double>(std::sqrt(sum));
}
constexpr double inf = std::numeric_limits<double>::infinity();

struct Norm {
  double norm;
  bool finite;
};
Norm norm_of(const Tensor& square_sum) {
  const Tensor loss = Tensor::zeros({1}, DType::f64, square_sum.device());
  const auto decision = clip_decision(square_sum, loss, 1).to_vector();
  return {decision[0], decision[2] != 0};
}
// Of copies on the device.
Tensor square_sum_of(std::span<const Tensor> tensors, Device device) {
  std::vector<Tensor> there;
  for (const Tensor& t : tensors) there.push_back(t.defined() ? t.to(device) : t);
  return sum_of_squares(there, device);
}
Norm norm_of(std::span<const Tensor> tensors, Device device = Device::cpu) {
  return norm_of(square_sum_of(tensors, device));
}
Norm norm_of_parts(const std::vector<std::span<const Tensor>>& ranks, Device device) {
  const Tensor parts = Tensor::empty({std::ssize(ranks), 3}, DType::f64, Device::cpu);
  for (std::size_t i = 0; i < ranks.size(); ++i)
    parts.select(static_cast<std::int64_t>(i)).copy_from(sum_of_squares(ranks[i], Device::cpu));
  return norm_of(add_square_sums(parts.to(device)));
}
}  // namespace

TEST_CASE("global_norm: small exact cases" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("global_norm")) {
    CAPTURE(device);
    CHECK(norm_of(std::span<const Tensor>(), device).norm == 0);
    CHECK(norm_of(std::span<const Tensor>(), device).finite);
    const Tensor empty = Tensor::zeros({0, 5}, DType::f32, Device::cpu),
                 zero = Tensor::zeros({3}, DType::bf16, Device::cpu);
    CHECK(norm_of(std::vector{empty, zero}, device).norm == 0);
    CHECK(norm_of(std::vector{empty, zero}, device).finite);
    std::vector mixed{Tensor::scalar(3, DType::f32, Device::cpu),
                      Tensor::scalar(-4, DType::bf16, Device::cpu)};
    CHECK(norm_of(mixed, device).norm == 5);
    mixed.push_back(Tensor::scalar(12, DType::f64, Device::cpu));
    if (device.is_cuda())
      CHECK_THROWS_AS(norm_of(mixed, device), Error);
    else
      CHECK(norm_of(mixed, device).norm == 13);
  }
}

TEST_CASE("global_norm: against a plain loop" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("global_norm"), [](Device device, DType dtype) {
    for (const std::int64_t n : {1, 31, 32, 33, 16384, 16385, 100003}) {
      CAPTURE(n);
      const std::vector tensors{random_tensor({n}, dtype, 1), random_tensor({7, 11}, dtype, 2, 1e3),
                                random_tensor({5, 9}, DType::f32, 3).narrow(1, 2, 4)};
      const Norm got = norm_of(tensors, device);
      CHECK(got.finite);
      CHECK(close(got.norm, reference_norm(tensors), {1e-14, 0}));
      CHECK(norm_of(tensors, device).norm == got.norm);
    }
  });
}

TEST_CASE("global_norm: windows and many tensors in one call" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("global_norm"), [](Device device, DType dtype) {
    const Tensor buffer = random_tensor({60000}, dtype, 1), there = buffer.to(device);
    std::vector<Tensor> parts, windows;
    for (std::int64_t i = 0, at = 0; i < 24; ++i) {
      const std::int64_t length = i == 7    ? 0
                                  : i == 11 ? 33000
                                            : 31 * i + 1;  // most start at no multiple of 16 bytes
      parts.push_back(buffer.narrow(0, at, length));
      windows.push_back(there.narrow(0, at, length));
      at += length;
    }
    const Norm got = norm_of(sum_of_squares(windows, device));
    CHECK(close(got.norm, reference_norm(parts), {1e-14, 0}));
    CHECK(norm_of(parts, device).norm == got.norm);  // the same bits as copies
  });
}

TEST_CASE("global_norm: extreme values neither overflow nor vanish" * doctest::test_suite("cuda")) {
  const double largest = std::numeric_limits<float>::max();
  for (const Device device : test_devices("global_norm")) {
    CAPTURE(device);
    Tensor big = Tensor::empty({10000}, DType::f32, Device::cpu);
    big.fill(largest);
    CHECK(close(norm_of({&big, 1}, device).norm, 100 * largest, {1e-14, 0}));
    Tensor tiny = Tensor::empty({10000}, DType::f32, Device::cpu);
    tiny.fill(1e-40);
    const double stored = tiny.to_vector()[0];
    CHECK(close(norm_of({&tiny, 1}, device).norm, 100 * stored, {1e-14, 0}));
  }
  for (const double scale : {1e200, 1e-200, 1.7e308, 5e-324, 1e-310}) {
    const std::vector wide{Tensor::from<double>({0.75 * scale, -0.5 * scale}, {2}),
                           Tensor::scalar(0, DType::f32, Device::cpu)};
    const auto v = wide[0].to_vector();
    const Norm got = norm_of(wide);
    CHECK(got.finite);
    CHECK(close(got.norm, std::hypot(v[0], v[1]), {1e-14, 5e-324}));
  }
}

TEST_CASE("global_norm: infinite and NaN elements are found" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("global_norm"), [](Device device, DType dtype) {
    for (const double bad : {inf, -inf, std::nan("")})
      for (const std::int64_t at : {0, 17, 33333}) {
        std::vector tensors{random_tensor({40000}, dtype, 1), random_tensor({3}, dtype, 2)};
        CHECK(norm_of(tensors, device).finite);
        tensors[0].narrow(0, at, 1).fill(bad);
        const Norm got = norm_of(tensors, device);
        CHECK_FALSE(got.finite);
        CHECK(std::isnan(got.norm) == std::isnan(bad));
        if (!std::isnan(bad)) CHECK(got.norm == inf);
      }
  });
}

TEST_CASE("global_norm: bits do not depend on threads") {
  const int before = omp_get_max_threads();
  const std::vector tensors{random_tensor({300007}, DType::f32, 1), random_tensor({50021}, DType::bf16, 2),
                            random_tensor({17}, DType::f64, 3)};
  omp_set_num_threads(1);
  const double one = norm_of(tensors).norm;
  omp_set_num_threads(3);
  CHECK(norm_of(tensors).norm == one);
  omp_set_num_threads(before);
}

TEST_CASE("square sums: those of several devices add up, also where the squares overflow" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("global_norm")) {
    CAPTURE(device);
    for (const double scale : {1.0, 1e200, 1e-200})
      for (const double other : {1.0, 1e200, 1e-200, 0.0}) {
        const std::vector a{random_tensor({100}, DType::f64, 4, scale)},
            b{random_tensor({77}, DType::f64, 5, other)};
        const std::vector both{a[0], b[0]};
        const Norm sum = norm_of_parts({a, b}, device);
        CHECK(sum.finite);
        CHECK(close(sum.norm, norm_of(both).norm, {1e-14, 0}));
        const Norm twice = norm_of_parts({a, b, b, a, {}}, device);
        CHECK(close(twice.norm, std::sqrt(2.0) * sum.norm, {1e-14, 0}));
      }
    const std::vector bad{Tensor::scalar(inf, DType::f32, Device::cpu)},
        good{Tensor::scalar(2, DType::f32, Device::cpu)};
    CHECK_FALSE(norm_of_parts({good, bad}, device).finite);
    CHECK(norm_of_parts({good, bad}, device).norm == inf);
  }
}

TEST_CASE("clip_decision: the coefficient, and whether the step counts" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("global_norm")) {
    CAPTURE(device);
    const auto decide = [&](const std::vector<double>& square_sum, double loss, double max_norm) {
      const Tensor sum = Tensor::from(square_sum, {3}), losses = Tensor::from<double>({loss}, {1});
      return clip_decision(sum.to(device), losses.to(device), max_norm).to_vector();
    };
    const auto decision = [&](double norm, double max_norm, double loss = 0) {
      return decide({norm * norm, 0, std::isfinite(norm) ? 1.0 : 0.0}, loss, max_norm);
    };
    const auto clip_coefficient = [&](double norm, double max_norm) { return decision(norm, max_norm)[1]; };
    CHECK(close(clip_coefficient(2.558, 1), 0.390930, {0, 5e-7}));
    CHECK(clip_coefficient(2.5, 1) == 1 / (2.5 + 1e-6));
    CHECK(clip_coefficient(0.5, 1) == 1);
    CHECK(clip_coefficient(0, 1) == 1);
    CHECK(clip_coefficient(1, 1) < 1);
    CHECK(clip_coefficient(inf, 1) == 0);
    CHECK(clip_coefficient(std::nan(""), 1) == 1);
    CHECK(clip_coefficient(1e100, inf) == 1);
    CHECK(decision(3, 1)[0] == 3);
    CHECK(decide({9, 2, 1}, 0, 1)[0] == 12);
    CHECK(decision(3, 1, 5)[2] == 1);
    for (const double bad : {inf, -inf, std::nan("")}) {
      CHECK(decision(3, 1, bad)[2] == 0);
      CHECK(decision(bad, 1, 5)[2] == 0);
    }
  }
}

TEST_CASE("global_norm: errors") {
  const std::vector undefined{Tensor::scalar(1, DType::f32, Device::cpu), Tensor()};
  CHECK_THROWS_AS(norm_of(undefined), Error);
  const Tensor integers = Tensor::zeros({3}, DType::i32, Device::cpu);
  CHECK_THROWS_AS(norm_of({&integers, 1}), Error);
  const Tensor sum = Tensor::zeros({3}, DType::f64, Device::cpu),
               loss = Tensor::zeros({1}, DType::f64, Device::cpu);
  CHECK_THROWS_AS(clip_decision(loss, loss, 1), Error);
  CHECK_THROWS_AS(clip_decision(sum, sum, 1), Error);
  CHECK_THROWS_AS(add_square_sums(sum.reshape({1, 3}).to(DType::f32)), Error);
  CHECK_THROWS_AS(add_square_sums(loss), Error);
  CHECK_THROWS_AS(clip_decision(sum, loss, 0), Error);
  CHECK_THROWS_AS(clip_decision(sum, loss, -1), Error);
  CHECK_THROWS_AS(clip_decision(sum, loss, std::nan("")), Error);
}
