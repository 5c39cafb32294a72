#include "train/recipe/words.h"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "core/error.h"

namespace nemocube::recipe {

std::vector<std::string> words_of(std::string_view separated_by_blanks) {
  std::istringstream in{std::string(separated_by_blanks)};
  return {std::istream_iterator<std::string>(in), {}};
}

std::string joined(std::span<const std::string> words) {
  std::string out;
  for (const std::string& word : words) out += cat(out.empty() ? "" : ", ", word);
  return out;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string lower_case(std::string_view text) {
  std::string out;
  for (const char c : text) out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string last_component(const std::string& dotted_path) {
  return dotted_path.substr(dotted_path.find_last_of(".:") + 1);  // npos + 1 is 0
}

bool is_for_class(std::string_view classes, std::string_view word) {
  return classes.empty() || word.empty() || std::ranges::count(words_of(classes), word) > 0;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  const std::string* found = nullptr;
  std::size_t least = 0;
  for (const std::string& candidate : candidates) {
    const auto [shorter, longer] = std::minmax({word.size(), candidate.size()});
    if (found != nullptr && longer - shorter >= least) continue;  // no distance is below this difference
    const std::size_t distance = edit_distance(word, candidate);
    if (found != nullptr && distance >= least) continue;
    found = &candidate;
    least = distance;
  }
  return found == nullptr ? "" : *found;
}

}  // namespace nemocube::recipe
