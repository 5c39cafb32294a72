#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "instructions/float8.h"
#include "instructions/half.h"
#include "ptx/syntax.h"

/// Element types of the operands of mma and wmma (PTX ISA 9.7.14.2): how elements lie in registers, and the numbers
/// that stand for them in a product.
///
/// Row: C++ type of a register. packed: elements of a register, the first one in the lowest bits. Number: what is
/// computed with. Accumulators also have `bits`, which rounds a Number to the element; `fit` says whether
/// sums outside of the range are clamped (.satfinite).
namespace emulator::matrix {

enum class Fit : std::uint8_t { wrap, clamp };

struct F16 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::f16;
  static constexpr int packed = 2;
  static Number number(std::uint16_t bits) { return half_to_float(bits); }
  static std::uint16_t bits(Number x, Fit) { return double_to_half(x); }
};

struct Bf16 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::bf16;
  static constexpr int packed = 2;
  static Number number(std::uint16_t bits) { return bfloat_to_float(bits); }
};

/// The lower 13 bits of the register are ignored.
struct Tf32 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::tf32;
  static constexpr int packed = 1;
  static Number number(std::uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); }
};

struct E4m3 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::e4m3;
  static constexpr int packed = 4;
  static Number number(std::uint8_t bits) { return half_to_float(e4m3_to_half(bits)); }
};

struct E5m2 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::e5m2;
  static constexpr int packed = 4;
  static Number number(std::uint8_t bits) { return half_to_float(e5m2_to_half(bits)); }
};

struct F32 {
  using Row = std::uint32_t;
  using Number = double;
  static constexpr ptx::Type type = ptx::Type::f32;
  static constexpr int packed = 1;
  static Number number(std::uint32_t bits) { return std::bit_cast<float>(bits); }
  static std::uint32_t bits(Number x, Fit) {
    return std::bit_cast<std::uint32_t>(canonical(static_cast<float>(x)));
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
  using Number = std::int64_t;
  static constexpr ptx::Type type = ptx::Type::s8;
  static constexpr int packed = 4;
  static Number number(std::uint8_t bits) { return static_cast<std::int8_t>(bits); }
};

struct U8 {
  using Row = std::uint32_t;
  using Number = std::int64_t;
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

/// The register with element e set to `bits`; that element was zero.
template <class T, class Bits>
constexpr typename T::Row with_element(typename T::Row row, int e, Bits bits) {
  constexpr int width = sizeof(row) * 8 / T::packed;
  return row | static_cast<typename T::Row>(bits) << (width * e % (sizeof(row) * 8));
}

/// C += A B. Products of 8- and 16-bit and tf32 elements are exact in double and the sums of one instruction nearly so
/// (their order and rounding are unspecified in PTX); for f64 this is the documented chain of fused multiply-adds.
template <int m, int n, int k>
void multiply_add(const double (&a)[m][k], const double (&b)[k][n], double (&c)[m][n]) {
  for (int row = 0; row < m; ++row)
    for (int step = 0; step < k; ++step)
      for (int column = 0; column < n; ++column)
        c[row][column] = std::fma(a[row][step], b[step][column], c[row][column]);
}
template <int m, int n, int k>
void multiply_add(const std::int64_t (&a)[m][k], const std::int64_t (&b)[k][n], std::int64_t (&c)[m][n]) {
  for (int row = 0; row < m; ++row)
    for (int step = 0; step < k; ++step)
      for (int column = 0; column < n; ++column) c[row][column] += a[row][step] * b[step][column];
}

}  // namespace emulator::matrix
