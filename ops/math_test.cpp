#include "ops/math.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>

using namespace nemocube;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

/// Largest error(x) over floats x of both signs in [-most, most], taken evenly from the bit patterns.
double worst_of(float most, const std::function<double(float)>& error) {
  constexpr std::uint32_t step = 9973;
  double worst = 0;
  for (std::uint32_t bits = 0; bits <= std::bit_cast<std::uint32_t>(most); bits += step)
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)})
      if (const double e = error(x); !(e <= worst)) worst = std::isnan(e) ? double{inf} : e;
  return worst;
}

double relative(double got, double want) { return std::abs(got - want) / std::abs(want); }

double exact_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double exact_silu_grad(double x) { return exact_sigmoid(x) * (1 + x * exact_sigmoid(-x)); }
double exact_softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

TEST_CASE("vec_exp: f32 keeps its error bound between the limits, and is 0 and infinity beyond them") {
  constexpr float lowest = -87.33654f, highest = 88.37f;
  CHECK(worst_of(-lowest, [](float x) { return relative(vec_exp(x), std::exp(double{x})); }) < 1e-7);
  CHECK(relative(vec_exp(lowest), std::exp(double{lowest})) < 1e-7);
  CHECK(relative(vec_exp(highest), std::exp(double{highest})) < 1e-7);
  CHECK(vec_exp(0.0f) == 1);
  CHECK(vec_exp(-0.0f) == 1);
  for (const float x : {-87.69f, -88.0f, -1e30f, -inf}) CHECK(vec_exp(x) == 0);
  for (const float x : {88.38f, 89.0f, 1e30f, inf}) CHECK(vec_exp(x) == inf);
  CHECK(std::isnan(vec_exp(std::nanf(""))));
  CHECK(std::isnan(vec_exp(-std::nanf(""))));
}

TEST_CASE("vec_exp: f64 is the standard library's") {
  for (const double x : {-745.0, -700.5, -1.0, 0.0, 0.3, 709.0, 710.0}) CHECK(vec_exp(x) == std::exp(x));
  CHECK(vec_exp(-HUGE_VAL) == 0);
  CHECK(vec_exp(HUGE_VAL) == HUGE_VAL);
  CHECK(std::isnan(vec_exp(std::nan(""))));
}

TEST_CASE("sigmoid, silu, softplus and their gradients: f32 against f64") {
  CHECK(worst_of(87, [](float x) { return relative(sigmoid(x), exact_sigmoid(x)); }) < 3e-7);
  // Below 1e-30 a relative error would be that of denormal numbers.
  CHECK(worst_of(87, [](float x) {
          return std::abs(x) < 1e-30f ? 0 : relative(silu(x), x * exact_sigmoid(x));
        }) < 3e-7);
  CHECK(worst_of(87, [](float x) { return std::abs(silu_grad(x) - exact_silu_grad(x)); }) < 2e-6);
  CHECK(worst_of(87, [](float x) { return relative(softplus(x), exact_softplus(x)); }) < 3e-7);
  CHECK(worst_of(87, [](float x) { return relative(softplus_grad(x), exact_sigmoid(x)); }) < 3e-7);
}

TEST_CASE("sigmoid, silu, softplus and their gradients: f64 against closed forms and differences") {
  for (double x = -40; x <= 40; x += 0.37) {
    CAPTURE(x);
    CHECK(relative(sigmoid(x), std::exp(x) / (1 + std::exp(x))) < 1e-15);
    CHECK(silu(x) == x * sigmoid(x));
    CHECK(relative(softplus(x), exact_softplus(x)) < 3e-9);  // e^-20 / 20 is dropped above 20
    const double h = 1e-5;
    CHECK(std::abs(silu_grad(x) - (silu(x + h) - silu(x - h)) / (2 * h)) < 1e-8);
    CHECK(std::abs(softplus_grad(x) - (softplus(x + h) - softplus(x - h)) / (2 * h)) < 1e-8);
  }
}

TEST_CASE_TEMPLATE("sigmoid, silu, softplus and their gradients: far from zero, and NaN", T, float, double) {
  const T far = 1000, nan = std::numeric_limits<T>::quiet_NaN();
  CHECK(sigmoid(far) == 1);
  CHECK(sigmoid(-far) == 0);
  CHECK(silu(far) == far);
  CHECK(silu(-far) == 0);
  CHECK(silu_grad(far) == 1);
  CHECK(silu_grad(-far) == 0);
  CHECK(softplus(far) == far);
  CHECK(softplus(-far) == 0);
  CHECK(softplus(std::nextafter(T(20), far)) == std::nextafter(T(20), far));
  CHECK(softplus_grad(far) == 1);
  CHECK(softplus_grad(-far) == 0);
  for (const T y : {sigmoid(nan), silu(nan), silu_grad(nan), softplus(nan), softplus_grad(nan)})
    CHECK(std::isnan(y));
}

TEST_CASE("vec_tanh: f32 keeps its error bound, f64 is the standard library's") {
  CHECK(worst_of(100, [](float x) {
          return std::abs(x) < 1e-30f ? 0 : relative(vec_tanh(x), std::tanh(double{x}));
        }) < 5e-7);
  for (const float x : {1e30f, inf}) {
    CHECK(vec_tanh(x) == 1);
    CHECK(vec_tanh(-x) == -1);
  }
  CHECK(vec_tanh(0.0f) == 0);
  CHECK(std::isnan(vec_tanh(std::nanf(""))));
  CHECK(vec_tanh(0.3) == std::tanh(0.3));
}
