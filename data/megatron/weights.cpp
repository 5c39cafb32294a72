#include "data/megatron/weights.h"

#include <array>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace nemocube {

double numpy_sum(std::span<const double> numbers) {
  constexpr std::size_t lanes = 8, block = 128;
  const std::size_t n = numbers.size();
  if (n < lanes) return std::accumulate(numbers.begin(), numbers.end(), 0.0);
  if (n > block) {
    const std::size_t half = n / 2 - n / 2 % lanes;
    return numpy_sum(numbers.first(half)) + numpy_sum(numbers.subspan(half));
  }
  std::array<double, lanes> sums{};
  const std::size_t whole = n - n % lanes;
  for (std::size_t i = 0; i < whole; ++i) sums[i % lanes] += numbers[i];
  const auto& r = sums;
  const double paired = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  return std::accumulate(numbers.begin() + static_cast<std::ptrdiff_t>(whole), numbers.end(), paired);
}

std::vector<double> normalised(std::span<const double> weights, const std::string& where) {
  const double sum = numpy_sum(weights);
  std::string list;
  if (!(std::isfinite(sum) && sum > 0))
    for (const double weight : weights) list += cat(list.empty() ? "" : ", ", weight);
  require(list.empty(), where, ": want weights with a finite sum above 0, got ", list, " with the sum ", sum);
  std::vector<double> shares;
  for (const double weight : weights) shares.push_back(weight / sum);
  return shares;
}

}  // namespace nemocube
