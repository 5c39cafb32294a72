#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// Instructions with their meaning in C++, for random programs: written from the PTX ISA, without the emulator's decoders.
namespace emulator::test {

/// Kinds of registers. Floating types have banks of their own: nothing reads the bits of a NaN, which PTX leaves open.
enum class Bank : std::uint8_t { b16, b32, b64, pred, f32, f64, f16, bf16, f16x2, bf16x2 };
constexpr int banks = 10;
constexpr std::array<const char*, banks> bank_names{"%s", "%i",  "%l",  "%b",  "%x",
                                                    "%y", "%hf", "%hb", "%wf", "%wb"};
constexpr std::array<const char*, banks> bank_types{"b16", "b32", "b64", "pred", "f32",
                                                    "f64", "b16", "b16", "b32",  "b32"};
constexpr std::array<int, banks> bank_bytes{2, 4, 8, 4, 4, 8, 2, 2, 4, 4};

struct Operand {
  Bank bank;
  bool literal = false;
};

struct Operation {
  /// "add.s32", to which operands are appended, results first; or the whole text with $0, $1 ... for them.
  std::string text;
  std::vector<Bank> results;
  std::vector<Operand> sources;
  bool immediates = true;  ///< integer, f32 and f64 sources may be immediates
  /// `carry`: the thread's carry flag.
  std::function<void(const std::uint64_t* sources, std::uint64_t* results, bool& carry)> evaluate;
};

const std::vector<Operation>& operations();

}  // namespace emulator::test
