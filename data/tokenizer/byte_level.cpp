#include "data/tokenizer/byte_level.h"

#include <array>

#include "core/utf8.h"

namespace nemocube::tok {
namespace {

constexpr int alphabet_end = 0x100 + 68;

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int, alphabet_end> byte{};  // -1: not in the alphabet

  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const char32_t c = printable ? static_cast<char32_t>(b) : next++;
      character[static_cast<std::size_t>(b)] = c;
      byte[c] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

char32_t byte_to_character(unsigned char byte) { return alphabet().character[byte]; }

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string out;
  out.reserve(token.size());
  for (std::size_t pos = 0; pos < token.size();) {
    const Utf8Step step = utf8_step(token, pos);
    if (!step.valid || step.character >= alphabet_end) return std::nullopt;
    const int byte = alphabet().byte[step.character];
    if (byte < 0) return std::nullopt;
    out.push_back(static_cast<char>(byte));
    pos += step.length;
  }
  return out;
}

}  // namespace nemocube::tok
