#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace nemocube {

/// Records whether all numbers that a loop writes are finite. Each number costs one bit operation and one
/// integer maximum. The compiler vectorises such a loop; it would not vectorise a floating-point sum.
template <class T>
class FiniteCheck {
 public:
  void add(T value) { largest_ = std::max(largest_, std::bit_cast<Bits>(value) & magnitude); }
  bool all_finite() const { return largest_ < infinity; }

 private:
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  // Magnitudes of IEEE 754 numbers are in the order of their bits; infinity and then NaN come last.
  static constexpr Bits magnitude = ~Bits{0} >> 1;
  static constexpr Bits infinity = sizeof(T) == 8 ? Bits(0x7ff0000000000000U) : Bits(0x7f800000U);
  Bits largest_ = 0;
};

}  // namespace nemocube
