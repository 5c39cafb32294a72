#include "model/config_checks.h"

#include "core/error.h"

namespace nemocube {
namespace {
// With these bounds every product of sizes, and the bytes of optimizer state of all parameters, stay far
// below 2^63.
constexpr std::int64_t most_size = 1 << 24, most_width = 1 << 26;
}  // namespace

void check_size(const char* key, std::int64_t value, std::int64_t low) {
  require(value >= low, key, ": want at least ", low, ", got ", value);
  require(value <= most_size, key, ": want at most ", most_size, ", got ", value);
}

void check_width(const char* keys, std::int64_t a, std::int64_t b) {
  require(a <= most_width / b, keys, ": want a product of at most ", most_width, ", got ", a, " x ", b);
}

void check_multiple(const char* key, std::int64_t value, const char* of, std::int64_t divisor) {
  require(value % divisor == 0, key, ": want a multiple of ", of, " (", divisor, "), got ", value);
}

void check_range(const char* key, double value, double low, double high) {
  require(value >= low && value <= high, key, ": want a number in [", low, ", ", high, "], got ", value);
}

}  // namespace nemocube
