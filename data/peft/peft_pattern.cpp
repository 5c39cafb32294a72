#include "data/peft/peft_pattern.h"

#include <algorithm>

#include "core/error.h"
#include "core/quote.h"

namespace nemocube {
namespace {
constexpr std::size_t most_pattern_bytes = 1000;

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}
}  // namespace

PeftPattern::PeftPattern(std::string_view key) {
  require(!key.empty() && key.size() <= most_pattern_bytes, "want an expression of 1 to ", most_pattern_bytes,
          " bytes, got ", quote(key));
  if (std::ranges::all_of(key, is_plain)) {
    plain_ = key;
    return;
  }
  tok::Regex::oniguruma(key);  // refuses parentheses that only the group around the key would close
  regex_ = tok::Regex::oniguruma(cat("^(?:.*\\.)?(?:", key, ")$"));
}

bool PeftPattern::matches(std::string_view path) const {
  if (regex_) return regex_->find(path, 0).has_value();
  if (path.size() < plain_.size()) return false;
  const std::string_view before = path.substr(0, path.size() - plain_.size()),
                         end = path.substr(before.size());
  return (before.empty() || before.ends_with('.')) &&
         std::ranges::equal(plain_, end, [](char want, char got) { return want == '.' || want == got; });
}

}  // namespace nemocube
