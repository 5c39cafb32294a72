#include "model/blocks/attention/position_scale.h"

#include <bit>
#include <cmath>
#include <vector>

namespace nemocube {
namespace {

/// What sequences keep of query_scales().
struct QueryScales {
  Tensor values;
  void refill(const QueryScales& made) const { values.copy_from(made.values); }
};

}  // namespace

Tensor query_scales(const PositionScale& scale, const Sequences& rows, DType dtype, Device device) {
  if (scale.beta == 0) return {};
  const auto make = [=](const Sequences& from) {
    std::vector<double> factors;
    for (const std::int64_t position : from.positions())
      factors.push_back(1 + scale.beta * std::log(1 + static_cast<double>(position / scale.positions)));
    expect(std::ssize(factors) == from.tokens(), "positions of ", factors.size(), " of ", from.tokens(),
           " rows");
    const Shape shape{from.tokens()};
    if (dtype == DType::f64) return QueryScales{Tensor::from(factors, shape).to(device)};
    return QueryScales{Tensor::from(std::vector<float>(factors.begin(), factors.end()), shape).to(device)};
  };
  return rows
      .derived<QueryScales>(
          device,
          {static_cast<std::int64_t>(dtype), std::bit_cast<std::int64_t>(scale.beta), scale.positions}, make)
      .values;
}

}  // namespace nemocube
