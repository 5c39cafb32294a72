#include "ops/global_norm/global_norm.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/compare.h"

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
}  // namespace

TEST_CASE("global_norm: small exact cases") {
  CHECK(global_norm({}).norm == 0);
  CHECK(global_norm({}).finite);
  const Tensor empty = Tensor::zeros({0, 5}, DType::f32), zero = Tensor::zeros({3}, DType::f64);
  CHECK(global_norm(std::vector{empty, zero}).norm == 0);
  CHECK(global_norm(std::vector{empty, zero}).finite);
  const std::vector mixed{Tensor::scalar(3, DType::f32), Tensor::scalar(-4, DType::bf16),
                          Tensor::scalar(12, DType::f64)};
  CHECK(global_norm(mixed).norm == 13);
}

TEST_CASE("global_norm: against a plain loop") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const std::int64_t n : {1, 31, 32, 33, 16384, 16385, 100003}) {
      CAPTURE(n);
      const std::vector tensors{random_tensor({n}, dtype, 1), random_tensor({7, 11}, dtype, 2, 1e3),
                                random_tensor({5, 9}, DType::f32, 3).narrow(1, 2, 4)};
      const NormResult got = global_norm(tensors);
      CHECK(got.finite);
      CHECK(close(got.norm, reference_norm(tensors), {1e-14, 0}));
    }
}

TEST_CASE("global_norm: extreme values neither overflow nor vanish") {
  const double largest = std::numeric_limits<float>::max();
  Tensor big = Tensor::empty({10000}, DType::f32);
  big.fill(largest);
  CHECK(close(global_norm({&big, 1}).norm, 100 * largest, {1e-14, 0}));
  Tensor tiny = Tensor::empty({10000}, DType::f32);
  tiny.fill(1e-40);
  const double stored = tiny.to_vector()[0];
  CHECK(close(global_norm({&tiny, 1}).norm, 100 * stored, {1e-14, 0}));
  for (const double scale : {1e200, 1e-200, 1.7e308, 5e-324, 1e-310}) {
    const std::vector wide{Tensor::from<double>({0.75 * scale, -0.5 * scale}, {2}),
                           Tensor::scalar(0, DType::f32)};
    const auto v = wide[0].to_vector();
    const NormResult got = global_norm(wide);
    CHECK(got.finite);
    CHECK(close(got.norm, std::hypot(v[0], v[1]), {1e-14, 5e-324}));
  }
}

TEST_CASE("global_norm: infinite and NaN elements are found") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const double bad : {inf, -inf, std::nan("")})
      for (const std::int64_t at : {0, 17, 33333}) {
        std::vector tensors{random_tensor({40000}, dtype, 1), random_tensor({3}, DType::f64, 2)};
        CHECK(global_norm(tensors).finite);
        tensors[0].narrow(0, at, 1).fill(bad);
        const NormResult got = global_norm(tensors);
        CHECK_FALSE(got.finite);
        CHECK(std::isnan(got.norm) == std::isnan(bad));
        if (!std::isnan(bad)) CHECK(got.norm == inf);
      }
}

TEST_CASE("global_norm: bits do not depend on threads") {
  const int before = omp_get_max_threads();
  const std::vector tensors{random_tensor({300007}, DType::f32, 1), random_tensor({50021}, DType::bf16, 2),
                            random_tensor({17}, DType::f64, 3)};
  omp_set_num_threads(1);
  const double one = global_norm(tensors).norm;
  omp_set_num_threads(3);
  CHECK(global_norm(tensors).norm == one);
  omp_set_num_threads(before);
}

TEST_CASE("clip_coefficient: values") {
  CHECK(close(clip_coefficient(2.558, 1), 0.390930, {0, 5e-7}));
  CHECK(clip_coefficient(2.558, 1) == 1 / (2.558 + 1e-6));
  CHECK(clip_coefficient(0.5, 1) == 1);
  CHECK(clip_coefficient(0, 1) == 1);
  CHECK(clip_coefficient(1, 1) < 1);
  CHECK(clip_coefficient(inf, 1) == 0);
  CHECK(clip_coefficient(std::nan(""), 1) == 1);
}

TEST_CASE("global_norm: errors") {
  const std::vector undefined{Tensor::scalar(1, DType::f32), Tensor()};
  CHECK_THROWS_AS(global_norm(undefined), Error);
  const Tensor integers = Tensor::zeros({3}, DType::i32);
  CHECK_THROWS_AS(global_norm({&integers, 1}), Error);
  CHECK_THROWS_AS(clip_coefficient(1, 0), Error);
  CHECK_THROWS_AS(clip_coefficient(1, -1), Error);
  CHECK_THROWS_AS(clip_coefficient(1, std::nan("")), Error);
}
