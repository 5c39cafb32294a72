#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/stack.h"

namespace nemocube::testing {

struct ParameterSample {
  std::size_t elements = 10;  ///< checked of each parameter, about
  std::uint64_t first = 0;    ///< which ones
  double least =
      1e-3;  ///< the largest gradient of each parameter is above this, so that it is one that counts
};

/// Central differences of `loss`, of a model of f64, against the gradients that the parameters hold: of those
/// for which checks() is true. Returns how many parameters these are.
inline std::size_t check_parameter_gradients(Stack& model, const std::function<double()>& loss,
                                             const ParameterSample& sample,
                                             const std::function<bool(const Parameter&)>& checks) {
  const double step = 1e-5;
  std::size_t checked = 0;
  for (Parameter& p : model.parameters().all()) {
    if (!checks(p)) continue;
    ++checked;
    CAPTURE(p.name);
    REQUIRE(p.node->filled());
    const std::vector<double> analytic = p.node->grad().to_vector();
    double largest = 0;
    for (const double g : analytic) largest = std::max(largest, std::abs(g));
    CHECK(largest > sample.least);
    auto* data = p.value.data<double>();
    const std::size_t stride = std::max<std::size_t>(1, analytic.size() / sample.elements);
    for (std::size_t j = sample.first % stride; j < analytic.size(); j += stride) {
      CAPTURE(j);
      const double keep = data[j];
      data[j] = keep + step;
      const double up = loss();
      data[j] = keep - step;
      const double down = loss();
      data[j] = keep;
      CHECK(std::abs(analytic[j] - (up - down) / (2 * step)) <= 1e-6 * std::max(1.0, largest));
    }
  }
  return checked;
}

}  // namespace nemocube::testing
