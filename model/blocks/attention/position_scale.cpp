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

/// The position of each row, for which a clean half follows its noised one.
std::vector<std::int64_t> through_halves(const Sequences& rows) {
  std::vector<std::int64_t> positions = rows.positions();
  for (std::int64_t i = 1; i < rows.count(); i += 2)
    for (std::int64_t row = rows.begin(i); row < rows.end(i); ++row)
      positions[static_cast<std::size_t>(row)] += rows.length(i - 1);
  return positions;
}

}  // namespace

Tensor query_scales(const PositionScale& scale, const Sequences& rows, DType dtype, Device device,
                    bool halves) {
  if (scale.beta == 0) return {};
  const auto make = [=](const Sequences& from) {
    std::vector<double> factors;
    for (const std::int64_t position : halves ? through_halves(from) : from.positions())
      factors.push_back(1 + scale.beta * std::log(1 + static_cast<double>(position / scale.positions)));
    expect(std::ssize(factors) == from.tokens(), "positions of ", factors.size(), " of ", from.tokens(),
           " rows");
    const Shape shape{from.tokens()};
    if (dtype == DType::f64) return QueryScales{Tensor::from(factors, shape).to(device)};
    return QueryScales{Tensor::from(std::vector<float>(factors.begin(), factors.end()), shape).to(device)};
  };
  return rows
      .derived<QueryScales>(device,
                            {static_cast<std::int64_t>(dtype), std::bit_cast<std::int64_t>(scale.beta),
                             scale.positions, halves},
                            make)
      .values;
}

}  // namespace nemocube
