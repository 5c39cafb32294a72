#pragma once
#include <span>
#include <string>
#include <vector>

namespace nemocube {

/// The sum as numpy.sum() forms it over float64, bit for bit: fewer than 8 numbers one after another; up to
/// 128 in eight sums, of every eighth number each, which are added in pairs, and then the rest; more in two
/// halves, the first of which has a multiple of 8.
double numpy_sum(std::span<const double> numbers);

/// The weights divided by numpy_sum(), as Megatron-LM's normalize() does. Throws Error naming `where` and the
/// weights when the sum is 0 or not finite.
std::vector<double> normalised(std::span<const double> weights, const std::string& where);

}  // namespace nemocube
