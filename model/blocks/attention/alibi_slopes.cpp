#include "model/blocks/attention/alibi_slopes.h"

#include <bit>
#include <cmath>

namespace nemocube {

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

}  // namespace nemocube
