#include "train/recipe/writer.h"

#include <charconv>

namespace nemocube::recipe {

std::string yaml_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : escape_variables(text)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      constexpr char hex[] = "0123456789abcdef";
      out += cat("\\x", hex[(c >> 4) & 15], hex[c & 15]);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string yaml_number(double value) {
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  std::string text(buffer.data(), end);
  if (text.find('.') != std::string::npos) return text;
  // YAML 1.1 takes 1e-05 for a string.
  const auto exponent = std::min(text.find('e'), text.size());
  return text.insert(exponent, ".0");
}

}  // namespace nemocube::recipe
