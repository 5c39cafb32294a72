#include <array>
#include <string_view>

#include "ptx/syntax.h"

namespace emulator::ptx {
namespace {

struct Named {
  std::string_view name;
  std::uint32_t bytes;
};

/// In the order of the enumeration.
constexpr std::array<Named, 26> table{{
    {"none", 0}, {"pred", 0}, {"b8", 1},   {"b16", 2},   {"b32", 4},    {"b64", 8},   {"b128", 16},
    {"u8", 1},   {"u16", 2},  {"u32", 4},  {"u64", 8},   {"s8", 1},     {"s16", 2},   {"s32", 4},
    {"s64", 8},  {"f16", 2},  {"bf16", 2}, {"f16x2", 4}, {"bf16x2", 4}, {"u16x2", 4}, {"s16x2", 4},
    {"tf32", 4}, {"f32", 4},  {"f64", 8},  {"e4m3", 1},  {"e5m2", 1},
}};
static_assert(table.size() == static_cast<std::size_t>(Type::e5m2) + 1);

}  // namespace

std::uint32_t bytes_of(Type type) { return table[static_cast<std::size_t>(type)].bytes; }

std::string_view name_of(Type type) { return table[static_cast<std::size_t>(type)].name; }

Type type_named(std::string_view name) {
  for (std::size_t i = 1; i < table.size(); ++i) {
    if (table[i].name == name) return static_cast<Type>(i);
  }
  return Type::none;
}

}  // namespace emulator::ptx
