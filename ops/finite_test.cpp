#include "ops/finite.h"

#include <doctest/doctest.h>

#include <limits>

using namespace nemocube;

TEST_CASE_TEMPLATE("finite check: infinities and NaN of either sign are found, every other number passes", T,
                   float, double) {
  using Limits = std::numeric_limits<T>;
  const auto finite = [](T value) {
    FiniteCheck<T> check;
    for (const T x : {T(1), value, T(-2)}) check.add(x);
    return check.all_finite();
  };
  for (const T x : {T(0), -T(0), Limits::max(), Limits::lowest(), Limits::min(), Limits::denorm_min()})
    CHECK(finite(x));
  for (const T x : {Limits::infinity(), Limits::quiet_NaN()}) {
    CHECK_FALSE(finite(x));
    CHECK_FALSE(finite(-x));
  }
  CHECK(FiniteCheck<T>().all_finite());
}
