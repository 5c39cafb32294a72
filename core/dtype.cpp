#include "core/dtype.h"

#include <array>

namespace nemocube {
namespace {
struct Row {
  DType dtype;
  std::int64_t size;
  std::array<std::string_view, 3> names;  // name_of() gives the first
};
constexpr std::array<Row, 6> table{{
    {DType::f32, 4, {"f32", "float32", "fp32"}},
    {DType::f64, 8, {"f64", "float64", "double"}},
    {DType::bf16, 2, {"bf16", "bfloat16", "bf16"}},
    {DType::i32, 4, {"i32", "int32", "int"}},
    {DType::i64, 8, {"i64", "int64", "long"}},
    {DType::u8, 1, {"u8", "uint8", "byte"}},
}};
const Row& row(DType dtype) { return table[static_cast<std::size_t>(dtype)]; }
}  // namespace

std::int64_t size_of(DType dtype) { return row(dtype).size; }
std::string_view name_of(DType dtype) { return row(dtype).names[0]; }
bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16; }
DType accumulate_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

void fail_dtype(std::string_view what, std::span<const DType> wanted, DType got) {
  std::string names;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    names += cat(i == 0 ? "" : i + 1 < wanted.size() ? ", " : " or ", wanted[i]);
  fail(what, ": want ", names, ", got ", got);
}

DType parse_dtype(std::string_view name) {
  std::string_view plain = name;
  if (plain.starts_with("torch.")) plain.remove_prefix(6);
  for (const Row& r : table)
    for (std::string_view known : r.names)
      if (plain == known) return r.dtype;
  fail("unknown dtype '", name, "' (known: f32, f64, bf16, i32, i64, u8)");
}

}  // namespace nemocube
