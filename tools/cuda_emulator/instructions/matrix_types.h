#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "instructions/float8.h"
#include "instructions/half.h"
#include "ptx/syntax.h"

/// Element types of the operands of mma and wmma (PTX ISA 9.7.14.2): how elements lie in registers, and the numbers
/// that stand for them in a product.
///
/// Row: C++ type of a register. packed: elements of a register, the first one in the lowest bits. Number: what is
/// computed with. Accumulators also have `bits`, which rounds a Number to the element; `fit` says whether
/// sums outside of the range are clamped (.satfinite). Where the processor has it, `eight` gives the numbers of eight
/// neighbouring elements, and `eight_bits` the elements of eight numbers.
namespace emulator::matrix {

enum class Fit : std::uint8_t { wrap, clamp };

struct F16 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::f16;
  static constexpr int packed = 2;
  static Number number(std::uint16_t bits) { return half_to_float(bits); }
  static __m256 eight(const void* bits) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(bits)));
  }
  static std::uint16_t bits(Number x, Fit) { return double_to_half(x); }
};

struct Bf16 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::bf16;
  static constexpr int packed = 2;
  static Number number(std::uint16_t bits) { return bfloat_to_float(bits); }
  static __m256 eight(const void* bits) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(bits)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};

/// The lower 13 bits of the register are ignored.
struct Tf32 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::tf32;
  static constexpr int packed = 1;
  static Number number(std::uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); }
  static __m256 eight(const void* bits) {
    const __m256i all = _mm256_loadu_si256(static_cast<const __m256i*>(bits));
    return _mm256_castsi256_ps(_mm256_and_si256(all, _mm256_set1_epi32(~0x1fff)));
  }
};

struct E4m3 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::e4m3;
  static constexpr int packed = 4;
  static Number number(std::uint8_t bits) { return half_to_float(e4m3_to_half(bits)); }
  /// Sign, exponent and fraction at the places of f16, whose exponents are larger by 8.
  static __m256 eight(const void* bits) {
    const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(bits)));
    const __m128i magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_xor_si128(wide, magnitude), 8);
    const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    const __m128i half =
        _mm_or_si128(_mm_or_si128(sign, _mm_slli_epi16(magnitude, 7)), _mm_srli_epi16(nan, 1));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
  }
};

struct E5m2 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::e5m2;
  static constexpr int packed = 4;
  static Number number(std::uint8_t bits) { return half_to_float(e5m2_to_half(bits)); }
  static __m256 eight(const void* bits) {
    const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(bits)));
    return _mm256_cvtph_ps(_mm_slli_epi16(wide, 8));
  }
};

struct F32 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::f32;
  static constexpr int packed = 1;
  static Number number(std::uint32_t bits) { return std::bit_cast<float>(bits); }
  static __m256 eight(const void* bits) { return _mm256_loadu_ps(static_cast<const float*>(bits)); }
  static std::uint32_t bits(Number x, Fit) {
    return std::bit_cast<std::uint32_t>(canonical(static_cast<float>(x)));
  }
  static void eight_bits(const Number* numbers, void* bits) {
    const __m256 x = _mm256_set_m128(_mm256_cvtpd_ps(_mm256_loadu_pd(numbers + 4)),
                                     _mm256_cvtpd_ps(_mm256_loadu_pd(numbers)));
    const __m256 nan = _mm256_set1_ps(nan_f32);
    _mm256_storeu_ps(static_cast<float*>(bits), _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  }
};

struct F64 {
  using Row = std::uint64_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::f64;
  static constexpr int packed = 1;
  static Number number(std::uint64_t bits) { return std::bit_cast<double>(bits); }
  static std::uint64_t bits(Number x, Fit) { return std::bit_cast<std::uint64_t>(x); }
};

struct S8 {
  using Row = std::uint32_t;
  using Number = std::int16_t;
  static constexpr ptx::Type type = ptx::Type::s8;
  static constexpr int packed = 4;
  static Number number(std::uint8_t bits) { return static_cast<std::int8_t>(bits); }
};

struct U8 {
  using Row = std::uint32_t;
  using Number = std::int16_t;
  static constexpr ptx::Type type = ptx::Type::u8;
  static constexpr int packed = 4;
  static Number number(std::uint8_t bits) { return bits; }
};

struct S32 {
  using Row = std::uint32_t;
  using Number = std::int64_t;
  static constexpr ptx::Type type = ptx::Type::s32;
  static constexpr int packed = 1;
  static Number number(std::uint32_t bits) { return static_cast<std::int32_t>(bits); }
  static std::uint32_t bits(Number x, Fit fit) {
    if (fit == Fit::clamp)
      x = std::clamp<Number>(x, std::numeric_limits<std::int32_t>::min(),
                             std::numeric_limits<std::int32_t>::max());
    return static_cast<std::uint32_t>(x);
  }
};

/// Element e of a register.
template <class T>
constexpr auto element(typename T::Row row, int e) {
  constexpr int width = sizeof(row) * 8 / T::packed;
  if constexpr (width == 8)
    return static_cast<std::uint8_t>(row >> (8 * e));
  else if constexpr (width == 16)
    return static_cast<std::uint16_t>(row >> (16 * e));
  else
    return row;
}

/// Neighbouring elements, of which `bits` holds the bits, as numbers.
template <class T, int count>
void to_numbers(const void* bits, typename T::Number* numbers) {
  using Bits = decltype(element<T>(0, 0));
  const std::byte* const at = static_cast<const std::byte*>(bits);
  if constexpr (requires { T::eight(bits); }) {
    static_assert(count % 8 == 0);
    for (int k = 0; k < count; k += 8) {
      const __m256 eight = T::eight(at + k * sizeof(Bits));
      _mm256_storeu_pd(numbers + k, _mm256_cvtps_pd(_mm256_castps256_ps128(eight)));
      _mm256_storeu_pd(numbers + k + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(eight, 1)));
    }
  } else {
    Bits all[count];
    std::memcpy(all, at, sizeof all);
    for (int k = 0; k < count; ++k) numbers[k] = T::number(all[k]);
  }
}

/// Numbers as the bits of neighbouring elements.
template <class T, int count>
void to_bits(const typename T::Number* numbers, [[maybe_unused]] Fit fit, void* bits) {
  using Bits = decltype(element<T>(0, 0));
  if constexpr (requires { T::eight_bits(numbers, bits); }) {
    static_assert(count % 8 == 0);
    for (int k = 0; k < count; k += 8)
      T::eight_bits(numbers + k, static_cast<std::byte*>(bits) + k * sizeof(Bits));
  } else {
    Bits all[count];
    for (int k = 0; k < count; ++k) all[k] = T::bits(numbers[k], fit);
    std::memcpy(bits, all, sizeof all);
  }
}

/// C += A B. Products of 8- and 16-bit and tf32 elements are exact in double and the sums of one instruction nearly so
/// (their order and rounding are unspecified in PTX); for f64 this is the documented chain of fused multiply-adds.
/// Tiles of 4 x 8 sums stay in registers.
template <int m, int n, int k>
void multiply_add(const double (&a)[m][k], const double (&b)[k][n], double (&c)[m][n]) {
  static_assert(m % 4 == 0 && n % 8 == 0);
  for (int row = 0; row < m; row += 4)
    for (int column = 0; column < n; column += 8) {
      __m256d sum[4][2];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r)
        for (int half = 0; half < 2; ++half) sum[r][half] = _mm256_loadu_pd(&c[row + r][column + 4 * half]);
      for (int step = 0; step < k; ++step) {
        const __m256d left = _mm256_loadu_pd(&b[step][column]), right = _mm256_loadu_pd(&b[step][column + 4]);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          const __m256d factor = _mm256_broadcast_sd(&a[row + r][step]);
          sum[r][0] = _mm256_fmadd_pd(factor, left, sum[r][0]);
          sum[r][1] = _mm256_fmadd_pd(factor, right, sum[r][1]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r)
        for (int half = 0; half < 2; ++half) _mm256_storeu_pd(&c[row + r][column + 4 * half], sum[r][half]);
    }
}

/// The products of 8-bit elements of one instruction add up to less than 2^31. A vector multiplies two neighbours of a row
/// of A with those of 8 columns of B and adds the two products; four rows at a time hide how long that takes.
template <int m, int n, int k>
void multiply_add(const std::int16_t (&a)[m][k], const std::int16_t (&b)[k][n], std::int64_t (&c)[m][n]) {
  static_assert(k <= 32 && k % 2 == 0 && m % 4 == 0 && n % 8 == 0);
  const auto eight = [](const std::int16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  };
  for (int column = 0; column < n; column += 8) {
    __m256i pairs[k / 2];
    for (int pair = 0; pair < k / 2; ++pair) {
      const __m128i first = eight(&b[2 * pair][column]), second = eight(&b[2 * pair + 1][column]);
      pairs[pair] = _mm256_set_m128i(_mm_unpackhi_epi16(first, second), _mm_unpacklo_epi16(first, second));
    }
    for (int row = 0; row < m; row += 4) {
      __m256i sum[4] = {};
      for (int pair = 0; pair < k / 2; ++pair)
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          std::int32_t factors;
          std::memcpy(&factors, &a[row + r][2 * pair], sizeof factors);
          sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(_mm256_set1_epi32(factors), pairs[pair]));
        }
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r)
        for (int half = 0; half < 2; ++half) {
          __m256i* const four = reinterpret_cast<__m256i*>(&c[row + r][column + 4 * half]);
          const __m128i added = half ? _mm256_extracti128_si256(sum[r], 1) : _mm256_castsi256_si128(sum[r]);
          _mm256_storeu_si256(four, _mm256_add_epi64(_mm256_loadu_si256(four), _mm256_cvtepi32_epi64(added)));
        }
    }
  }
}

}  // namespace emulator::matrix
