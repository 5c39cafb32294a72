#include "data/datasets/text.h"

#include "core/utf8.h"

namespace nemocube {

std::vector<std::size_t> character_offsets(std::string_view text) {
  std::vector<std::size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (std::size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0u) != 0x80u) offsets.push_back(i);
  offsets.push_back(text.size());
  return offsets;
}

bool is_python_space(char32_t character) {
  return (character >= 0x1c && character <= 0x1f) || is_white_space(character);
}

std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text, 0);
    if (!step.valid || !is_python_space(step.character)) break;
    text.remove_prefix(step.length);
  }
  while (!text.empty()) {
    const std::size_t last = previous_character(text, text.size());
    const Utf8Step step = utf8_step(text, last);
    if (!step.valid || !is_python_space(step.character)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

}  // namespace nemocube
