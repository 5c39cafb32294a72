#include "data/json/crc_text.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace nemocube {

std::string crc_text(std::uint32_t crc) {
  std::array<char, 9> text;
  std::snprintf(text.data(), text.size(), "%08x", static_cast<unsigned>(crc));
  return text.data();
}

std::uint32_t parse_crc(const JsonView& json) {
  const std::string_view text = json.string();
  std::uint32_t crc = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (text.size() != 8 || error != std::errc() || end != text.data() + text.size())
    json.refuse("eight hexadecimal digits");
  return crc;
}

}  // namespace nemocube
