#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/regex.h"

namespace nemocube {

/// A key of PEFT's rank_pattern and alpha_pattern: an expression for the end of a module's path, which begins
/// at the path's start or behind a dot. In Python: re.match("(.*\.)?(KEY)$", path).
class PeftPattern {
 public:
  /// Throws Error with the expression where it is not supported (data/tokenizer/regex_syntax.h) or too long.
  explicit PeftPattern(std::string_view key);
  /// pre: valid UTF-8 without line ends. Throws Error when backtracking exceeds the limit.
  bool matches(std::string_view path) const;

 private:
  std::string plain_;                ///< a path, whose dots stand for any character; most keys are paths
  std::optional<tok::Regex> regex_;  ///< any other expression
};

/// Patterns with values, of which the first that matches counts.
template <class T>
class PatternValues {
 public:
  void add(std::string_view key, T value) { values_.emplace_back(PeftPattern(key), value); }
  T value_of(std::string_view path, T otherwise) const {
    for (const auto& [pattern, value] : values_)
      if (pattern.matches(path)) return value;
    return otherwise;
  }

 private:
  std::vector<std::pair<PeftPattern, T>> values_;
};

}  // namespace nemocube
