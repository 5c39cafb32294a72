#include "model/blocks/attention/alibi_slopes.h"

#include <bit>
#include <cmath>

namespace nemocube {
namespace {

/// What sequences keep of alibi_slopes().
struct Slopes {
  Tensor values;
  void refill(const Slopes&) const {}  // the same for all sequences
};

}  // namespace

std::vector<float> alibi_slopes(std::int64_t n) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(n)));
  std::vector<float> slopes;
  const auto add = [&](double numerator) {
    slopes.push_back(static_cast<float>(std::exp2(-numerator / static_cast<double>(power))));
  };
  for (std::int64_t h = 0; h < power; ++h) add(8 * static_cast<double>(h + 1));
  for (std::int64_t k = 0; k < n - power; ++k) add(4 * static_cast<double>(2 * k + 1));
  return slopes;
}

Tensor alibi_slopes(std::int64_t n, const Range& heads, const Sequences& rows, Device device) {
  const auto make = [=](const Sequences&) {
    const std::vector<float> all = alibi_slopes(n);
    const Tensor own =
        Tensor::from<float>({all.begin() + heads.begin, all.begin() + heads.end}, {heads.size()});
    return Slopes{own.to(device)};
  };
  return rows.derived<Slopes>(device, {n, heads.begin, heads.end}, make).values;
}

}  // namespace nemocube
