#pragma once
#include <cstddef>
#include <string>

namespace nemocube::testing {

/// How often `part` stands in `text`.
inline std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace nemocube::testing
