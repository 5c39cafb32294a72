#include <charconv>

#include "core/error.h"
#include "train/commands/commands.h"

namespace nemocube {

DType parse_weight_dtype(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    if (cat(dtype) == name) return dtype;
  fail("--dtype: want f32, bf16 or f64, got '", name, "'");
}

CLI::Validator whole_number() {
  const auto check = [](const std::string& text) -> std::string {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc() && end == text.data() + text.size() && value >= 0;
    return whole ? "" : cat("want an integer from 0 to 2^63 - 1, got '", text, "'");
  };
  return CLI::Validator(check, "", "");
}

}  // namespace nemocube
