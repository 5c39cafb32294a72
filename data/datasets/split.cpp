#include "data/datasets/split.h"

#include <algorithm>
#include <charconv>

#include "core/log.h"

namespace nemocube {

namespace {

std::optional<DatasetSplit::Bound> parse_bound(std::string_view text, std::string_view whole) {
  if (text.empty()) return std::nullopt;
  DatasetSplit::Bound bound;
  bound.percent = text.back() == '%';
  if (bound.percent) text.remove_suffix(1);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), bound.value);
  require(error == std::errc{} && stop == text.data() + text.size(), "split '", whole,
          "': want a slice such as [:100], [10:20] or [:10%]");
  require(!bound.percent || (bound.value >= -100 && bound.value <= 100), "split '", whole,
          "': a percentage lies between -100 and 100");
  return bound;
}

std::int64_t place(const std::optional<DatasetSplit::Bound>& bound, std::int64_t size,
                   std::int64_t otherwise) {
  if (!bound) return otherwise;
  std::int64_t at = bound->value;
  if (bound->percent) at = (at * size * 2 + (at < 0 ? -100 : 100)) / 200;
  if (bound->value < 0) at += size;
  return std::clamp<std::int64_t>(at, 0, size);
}

}  // namespace

DatasetSplit DatasetSplit::parse(std::string_view text) {
  DatasetSplit split;
  split.text = text;
  const std::size_t open = text.find('[');
  split.name = text.substr(0, open);
  require(!split.name.empty(), "split: want a name such as train, got '", text, "'");
  require(split.name.find_first_of("/\\:]+") == std::string::npos, "split '", text,
          "': want one name such as train or validation, with a slice or without");
  if (open == std::string_view::npos) return split;
  const std::string_view inside = text.substr(open + 1, text.size() - open - 2);
  const std::size_t colon = inside.find(':');
  require(text.back() == ']' && colon != std::string_view::npos, "split '", text,
          "': want a slice such as [:100], [10:20] or [:10%]");
  split.sliced = true;
  split.begin = parse_bound(inside.substr(0, colon), text);
  split.end = parse_bound(inside.substr(colon + 1), text);
  return split;
}

std::pair<std::int64_t, std::int64_t> DatasetSplit::rows(std::string_view what, std::int64_t size) const {
  const std::int64_t first = place(begin, size, 0), last = place(end, size, size);
  require(first < last, what, ": split '", text, "' selects no row of ", size);
  return {first, last};
}

DatasetSplit with_limit(DatasetSplit split, std::optional<std::int64_t> limit, std::string_view key) {
  if (!limit) return split;
  require(*limit >= 1, key, ": want 1 or more, got ", *limit);
  if (split.sliced) {
    log_warning(key, " ", *limit, " is ignored: split '", split.text, "' has a slice already");
    return split;
  }
  split.sliced = true;
  split.end = DatasetSplit::Bound{*limit, false};
  return split;
}

}  // namespace nemocube
