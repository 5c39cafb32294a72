#pragma once
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/harness.h"

/// Tests of instructions that compute each lane alone: PTX statements run for many operands, against a function of C++.
namespace emulator::test {

/// A predicate operand: 0 or 1.
enum class Predicate : std::uint32_t {};

/// The PTX type of the register that holds a C++ value.
template <class T>
std::string register_type() {
  if constexpr (std::is_same_v<T, Predicate>)
    return "pred";
  else if constexpr (std::is_floating_point_v<T>)
    return sizeof(T) == 4 ? "f32" : "f64";
  else
    return "b" + std::to_string(8 * sizeof(T));
}

/// Operands that meet the corners of integer instructions: extremes, small numbers around the widths, and any bits.
template <class T>
T sample(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  if constexpr (std::is_same_v<T, Predicate>) {
    return static_cast<Predicate>(bits & 1);
  } else if constexpr (std::is_floating_point_v<T>) {
    using Limits = std::numeric_limits<T>;
    constexpr std::array corners{T{0},
                                 -T{0},
                                 T{1},
                                 -T{1},
                                 Limits::infinity(),
                                 -Limits::infinity(),
                                 Limits::quiet_NaN(),
                                 Limits::denorm_min(),
                                 -Limits::denorm_min(),
                                 Limits::min(),
                                 -Limits::min(),
                                 Limits::max(),
                                 Limits::min() / 2,
                                 -Limits::min() / 2};
    if (bits >> 62 == 0) return corners[bits % corners.size()];
    if (bits >> 62 == 1) return static_cast<T>(static_cast<int>(bits % 17) - 8);
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  } else {
    constexpr T low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
    constexpr std::array<std::uint64_t, 26> corners{
        0,  1,  2,  7,  8,  15,  16,  17,  23,     24,     30,     31,         32,
        33, 62, 63, 64, 65, 127, 255, 256, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000};
    switch (bits >> 61) {
      case 0:
        return low;
      case 1:
        return high;
      case 2:
        return static_cast<T>(~std::uint64_t{0} - bits % 3);
      case 3:
      case 4:
        return static_cast<T>(corners[bits % corners.size()]);
      default:
        return static_cast<T>(bits);
    }
  }
}

/// The results of `statements`, PTX that computes register %d from %s0, %s1 ..., for each row of operands. Rows: a multiple of 128.
template <class D, class... S>
std::vector<D> evaluate(const std::string& statements, const std::vector<S>&... sources) {
  const auto rows = static_cast<std::uint32_t>(std::get<0>(std::tie(sources...)).size());
  std::string declarations = ".reg ." + register_type<D>() + " %d;\n", body;
  int k = 0;
  const auto address = [&](std::size_t bytes) {
    return "mad.wide.u32 %rd1, %t, " + std::to_string(bytes) + ", %p" + std::to_string(k) + ";\n";
  };
  const auto load = [&]<class T>(const std::vector<T>&) {
    const std::string name = "%s" + std::to_string(k), type = register_type<T>();
    declarations += ".reg ." + type + " " + name + ";\n";
    body += address(sizeof(T));
    if (type == "pred")
      body += "ld.global.b32 %r1, [%rd1];\nsetp.ne.u32 " + name + ", %r1, 0;\n";
    else
      body += "ld.global." + type + " " + name + ", [%rd1];\n";
    ++k;
  };
  (load(sources), ...);
  body += statements + "\n" + address(sizeof(D));
  if (register_type<D>() == "pred")
    body += "selp.u32 %r1, 1, 0, %d;\nst.global.b32 [%rd1], %r1;\n";
  else
    body += "st.global." + register_type<D>() + " [%rd1], %d;\n";

  Arguments arguments;
  std::vector<std::unique_ptr<Buffer>> buffers;
  const auto give = [&](const void* data, std::size_t bytes) {
    buffers.push_back(std::make_unique<Buffer>(bytes));
    if (data) buffers.back()->write(data, bytes);
    arguments.add(buffers.back()->address());
  };
  (give(sources.data(), sources.size() * sizeof(S)), ...);
  give(nullptr, rows * sizeof(D));
  Module module({kernel_text(k + 1, declarations + body)}, 0);
  LaunchShape shape;
  shape.grid = {rows / 128, 1, 1};
  shape.block = {128, 1, 1};
  REQUIRE_MESSAGE(run(module, shape, arguments) == 0, statements);
  REQUIRE_MESSAGE(take_reports().empty(), statements);
  return buffers.back()->values<D>(rows);
}

template <class T>
std::string shown(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return std::to_string(value);
  else
    return std::to_string(
        static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(value));
}

/// Runs the statements for 2048 rows of samples; each result must have the bits of expected(%s0, %s1, ...).
template <class D, class... S, class F>
void check_lanes(const std::string& statements, F expected) {
  constexpr std::size_t rows = 2048;
  std::mt19937_64 random(std::hash<std::string>{}(statements));
  std::tuple<std::vector<S>...> sources;
  std::apply(
      [&](auto&... source) {
        for (std::size_t row = 0; row < rows; ++row)
          (source.push_back(sample<typename std::decay_t<decltype(source)>::value_type>(random)), ...);
      },
      sources);
  const std::vector<D> results =
      std::apply([&](const auto&... source) { return evaluate<D, S...>(statements, source...); }, sources);
  for (std::size_t row = 0; row < rows; ++row) {
    const D want =
        std::apply([&](const auto&... source) { return static_cast<D>(expected(source[row]...)); }, sources);
    if (std::memcmp(&want, &results[row], sizeof want) == 0) continue;
    std::string operands;
    std::apply([&](const auto&... source) { ((operands += " " + shown(source[row])), ...); }, sources);
    FAIL_CHECK(statements << " of" << operands << ": " << shown(results[row]) << ", want " << shown(want));
    return;
  }
  CHECK(true);
}

}  // namespace emulator::test
