#pragma once
#include <bit>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

/// Element types. f64 exists on the CPU for gradient checks; integers carry token ids, offsets and bytes.
namespace nemocube {

enum class DType : std::uint8_t { f32, f64, bf16, i32, i64, u8 };

/// bfloat16: the upper half of an f32. Arithmetic happens in f32; storing rounds to nearest, ties to even.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float f) {
    const auto u = std::bit_cast<std::uint32_t>(f);
    const std::uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const std::uint32_t quiet_nan = u | 0x400000u;  // rounding could carry a NaN into infinity
    bits = static_cast<std::uint16_t>((f == f ? rounded : quiet_nan) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  explicit operator double() const { return static_cast<float>(*this); }
};
static_assert(sizeof(bf16) == 2);

/// The type in which sums over values of type T are formed: f64 for f64, otherwise f32.
template <class T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};
template <class T>
using acc_t = typename Accumulate<T>::type;

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::u8;
}

std::int64_t size_of(DType dtype);      ///< bytes of one element
std::string_view name_of(DType dtype);  ///< "f32", "bf16", ...
DType parse_dtype(
    std::string_view name);  ///< accepts f32/float32/fp32/torch.float32 and alike; Error otherwise
bool is_float(DType dtype);
DType accumulate_dtype(DType dtype);  ///< f64 for f64, f32 for f32 and bf16
inline std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }

template <class T>
struct TypeTag {
  using type = T;
};

/// Calls fn(TypeTag<T>{}) with T = float, double or bf16 for a floating dtype; Error naming `what` otherwise.
/// The one place where a dtype becomes a type.
template <class Fn>
decltype(auto) visit_float(std::string_view what, DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::f32:
      return std::forward<Fn>(fn)(TypeTag<float>{});
    case DType::f64:
      return std::forward<Fn>(fn)(TypeTag<double>{});
    case DType::bf16:
      return std::forward<Fn>(fn)(TypeTag<bf16>{});
    default:
      fail(what, ": want f32, f64 or bf16, got ", name_of(dtype));
  }
}

}  // namespace nemocube
