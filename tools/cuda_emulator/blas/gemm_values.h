#pragma once
#include <library_types.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "instructions/float8.h"
#include "instructions/half.h"

/// Numbers as matrices hold them, and as products compute with them: every value is a double in between.
namespace emulator::blas {

struct Half {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};

struct E4m3 {
  std::uint8_t bits;
};
struct E5m2 {
  std::uint8_t bits;
};

/// Bytes of an element; 0 for types that no function here takes.
constexpr std::size_t element_bytes(cudaDataType type) {
  switch (type) {
    case CUDA_R_8I:
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
      return 1;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_32F:
    case CUDA_R_32I:
      return 4;
    case CUDA_R_64F:
    case CUDA_R_64I:
      return 8;
    default:
      return 0;
  }
}

inline double to_double(float x) { return x; }
inline double to_double(double x) { return x; }
inline double to_double(std::int8_t x) { return x; }
inline double to_double(std::int32_t x) { return x; }
inline double to_double(std::int64_t x) { return static_cast<double>(x); }
inline double to_double(Half x) { return half_to_float(x.bits); }
inline double to_double(Bfloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

inline double to_double(E4m3 x) { return half_to_float(e4m3_to_half(x.bits)); }
inline double to_double(E5m2 x) { return half_to_float(e5m2_to_half(x.bits)); }

/// Nearest value of the type, ties to even. 8-bit floats: at most the largest finite value. Integers: modulo 2^32 from the exact value, as sums of products wrap.
template <class T>
T from_double(double x) {
  if constexpr (std::is_same_v<T, Half>) {
    return {float_to_half(to_odd(x))};
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return {float_to_bfloat(to_odd(x))};
  } else if constexpr (std::is_same_v<T, E4m3>) {
    return {float_to_e4m3(x)};
  } else if constexpr (std::is_same_v<T, E5m2>) {
    return {float_to_e5m2(x)};
  } else if constexpr (std::is_integral_v<T>) {
    if (!(std::fabs(x) < 9e18)) return 0;
    return static_cast<T>(static_cast<std::int64_t>(x));
  } else {
    return static_cast<T>(x);
  }
}

/// Calls f with a null pointer of the type's C++ type.
template <class F>
auto with_type(cudaDataType type, F&& f) {
  switch (type) {
    case CUDA_R_8I:
      return f(static_cast<std::int8_t*>(nullptr));
    case CUDA_R_32I:
      return f(static_cast<std::int32_t*>(nullptr));
    case CUDA_R_64I:
      return f(static_cast<std::int64_t*>(nullptr));
    case CUDA_R_16F:
      return f(static_cast<Half*>(nullptr));
    case CUDA_R_16BF:
      return f(static_cast<Bfloat16*>(nullptr));
    case CUDA_R_8F_E4M3:
      return f(static_cast<E4m3*>(nullptr));
    case CUDA_R_8F_E5M2:
      return f(static_cast<E5m2*>(nullptr));
    case CUDA_R_64F:
      return f(static_cast<double*>(nullptr));
    default:
      return f(static_cast<float*>(nullptr));
  }
}

inline double load(cudaDataType type, const void* pointer, std::ptrdiff_t index = 0) {
  return with_type(type, [&](auto* none) {
    using T = std::remove_pointer_t<decltype(none)>;
    return to_double(static_cast<const T*>(pointer)[index]);
  });
}

inline void store(cudaDataType type, void* pointer, std::ptrdiff_t index, double value) {
  with_type(type, [&](auto* none) {
    using T = std::remove_pointer_t<decltype(none)>;
    static_cast<T*>(pointer)[index] = from_double<T>(value);
  });
}

/// Types to which the inputs of a product are rounded first.
enum class InputRounding : std::uint8_t { none, tf32, half, bfloat16 };

inline double round_input(InputRounding rounding, double x) {
  switch (rounding) {
    case InputRounding::tf32: {  // nearest, ties away from zero
      const auto value = static_cast<float>(x);
      if (!std::isfinite(value)) return x;
      return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000) & 0xffff'e000);
    }
    case InputRounding::half:
      return to_double(from_double<Half>(x));
    case InputRounding::bfloat16:
      return to_double(from_double<Bfloat16>(x));
    default:
      return x;
  }
}

}  // namespace emulator::blas
