#include "parallel/schedule/fields.h"

namespace nemocube {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view spaces = " \t\r";
  const auto begin = text.find_first_not_of(spaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(spaces) + 1 - begin);
}

std::vector<std::string_view> fields_of(std::string_view text, char separator) {
  std::vector<std::string_view> fields;
  for (std::size_t end; (end = text.find(separator)) != std::string_view::npos; text.remove_prefix(end + 1))
    fields.push_back(trimmed(text.substr(0, end)));
  fields.push_back(trimmed(text));
  return fields;
}

}  // namespace nemocube
