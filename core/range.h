#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace nemocube {

/// Entries [begin, end).
struct Range {
  std::int64_t begin = 0, end = 0;
  constexpr std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Where part `index` begins when `size` entries are divided into `parts` as evenly as possible: the first
/// size mod parts parts have one entry more. Part number `parts` begins at the end. For size >= 0, parts >=
/// 1, 0 <= index <= parts.
constexpr std::int64_t even_begin(std::int64_t size, std::int64_t parts, std::int64_t index) {
  return index * (size / parts) + std::min(index, size % parts);
}

/// Part `index` of `parts` of a range, as even_begin() divides it.
constexpr Range even_part(Range whole, std::int64_t parts, std::int64_t index) {
  return {whole.begin + even_begin(whole.size(), parts, index),
          whole.begin + even_begin(whole.size(), parts, index + 1)};
}

/// The sizes of all parts, as even_begin() divides `size`.
inline std::vector<std::int64_t> even_sizes(std::int64_t size, std::int64_t parts) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t i = 0; i < parts; ++i) sizes.push_back(even_part({0, size}, parts, i).size());
  return sizes;
}

}  // namespace nemocube
