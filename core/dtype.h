#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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

/// The types behind the dtypes, in the order of DType.
template <class... Ts>
struct TypeList {};
using ElementTypes = TypeList<float, double, bf16, std::int32_t, std::int64_t, std::uint8_t>;

namespace dtype_detail {
template <class T, class... Ts>
constexpr DType find(TypeList<Ts...>) {
  static_assert((std::is_same_v<T, Ts> || ...), "not the type of a dtype");
  std::uint8_t index = 0;
  static_cast<void>(((std::is_same_v<T, Ts> || (++index, false)) || ...));
  return static_cast<DType>(index);
}
}  // namespace dtype_detail

template <class T>
constexpr DType dtype_of() {
  return dtype_detail::find<T>(ElementTypes());
}

std::int64_t size_of(DType dtype);      ///< bytes of one element
std::string_view name_of(DType dtype);  ///< "f32", "bf16", ...
DType parse_dtype(
    std::string_view name);  ///< accepts f32/float32/fp32/torch.float32 and alike; Error otherwise
bool is_float(DType dtype);
DType accumulate_dtype(DType dtype);  ///< f64 for f64, f32 for f32 and bf16
inline std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }

/// Throws Error "what: want f32, f64 or bf16, got i64".
[[noreturn]] void fail_dtype(std::string_view what, std::span<const DType> wanted, DType got);

template <class T>
struct TypeTag {
  using type = T;
};

namespace dtype_detail {
template <class T, class... Rest, class Fn>
decltype(auto) visit(DType dtype, Fn&& fn) {
  if constexpr (sizeof...(Rest) > 0)
    if (dtype != dtype_of<T>()) return visit<Rest...>(dtype, std::forward<Fn>(fn));
  return std::forward<Fn>(fn)(TypeTag<T>());
}
}  // namespace dtype_detail

/// Calls fn(TypeTag<T>()) for the T among `Ts` that `dtype` stands for. Throws Error naming `what` when there
/// is no such T. This is the one place where a dtype becomes a type:
///     visit_dtype<float, double>("op", t.dtype(), [&]<class T>(TypeTag<T>) { run(t.data<T>()); });
template <class... Ts, class Fn>
decltype(auto) visit_dtype(std::string_view what, DType dtype, Fn&& fn) {
  static constexpr std::array<DType, sizeof...(Ts)> wanted{dtype_of<Ts>()...};
  if (((dtype != dtype_of<Ts>()) && ...)) [[unlikely]]
    fail_dtype(what, wanted, dtype);
  return dtype_detail::visit<Ts...>(dtype, std::forward<Fn>(fn));
}

/// visit_dtype for the floating dtypes.
template <class Fn>
decltype(auto) visit_float(std::string_view what, DType dtype, Fn&& fn) {
  return visit_dtype<float, double, bf16>(what, dtype, std::forward<Fn>(fn));
}

/// visit_dtype for the accumulation dtypes.
template <class Fn>
decltype(auto) visit_accumulate(std::string_view what, DType dtype, Fn&& fn) {
  return visit_dtype<float, double>(what, dtype, std::forward<Fn>(fn));
}

/// visit_dtype for all dtypes.
template <class Fn>
decltype(auto) visit_any(DType dtype, Fn&& fn) {
  return [&]<class... Ts>(TypeList<Ts...>) -> decltype(auto) {
    return dtype_detail::visit<Ts...>(dtype, std::forward<Fn>(fn));
  }(ElementTypes());
}

}  // namespace nemocube
