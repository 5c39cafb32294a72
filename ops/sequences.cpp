#include "ops/sequences.h"

#include <algorithm>

namespace nemocube {

Sequences Sequences::uniform(std::int64_t count, std::int64_t length) {
  Sequences s;
  for (std::int64_t i = 1; i <= count; ++i) s.offsets.push_back(i * length);
  return s;
}

Sequences Sequences::of_lengths(std::span<const std::int64_t> lengths) {
  Sequences s;
  for (const std::int64_t n : lengths) s.offsets.push_back(s.offsets.back() + n);
  return s;
}

Sequences Sequences::from_ids(std::span<const std::int64_t> ids) {
  Sequences s;
  for (std::size_t t = 1; t <= ids.size(); ++t)
    if (t == ids.size() || ids[t] != ids[t - 1]) s.offsets.push_back(static_cast<std::int64_t>(t));
  return s;
}

std::int64_t Sequences::longest() const {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < count(); ++i) most = std::max(most, length(i));
  return most;
}

void Sequences::check(std::string_view what, std::int64_t tokens) const {
  require(!offsets.empty() && offsets.front() == 0, what, ": sequence offsets must start at 0");
  require(std::ranges::is_sorted(offsets), what, ": sequence offsets must ascend");
  require(offsets.back() == tokens, what, ": sequences cover ", offsets.back(), " tokens, the input has ",
          tokens);
}

}  // namespace nemocube
