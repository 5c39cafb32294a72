#pragma once
#include <cstdint>
#include <limits>

/// Checks of values of a config, for ModelConfig::validate() and the kinds of blocks. Each function throws
/// Error naming the key, the accepted values and the given value.
namespace nemocube {

constexpr double largest_number = std::numeric_limits<double>::max();

void check_size(const char* key, std::int64_t value, std::int64_t low = 1);
/// A product of two sizes.
void check_width(const char* keys, std::int64_t a, std::int64_t b);
void check_multiple(const char* key, std::int64_t value, const char* of, std::int64_t divisor);
void check_range(const char* key, double value, double low, double high);

}  // namespace nemocube
