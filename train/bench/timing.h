#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

#include "core/error.h"

namespace nemocube {

/// Seconds that one call of fn takes.
template <class Fn>
double seconds_of(Fn&& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The middle value, or the mean of the middle two for an even number of values.
inline double median(std::vector<double> values) {
  expect(!values.empty(), "median of nothing");
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace nemocube
