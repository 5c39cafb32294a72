#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/text.h"

struct pcre2_real_code_8;

namespace nemocube::tok {

/// A compiled expression over valid UTF-8. Immutable; many threads may use one at once.
class Regex {
 public:
  /// Compiles an expression written for Oniguruma (see regex_syntax.h). Throws Error when it is not
  /// supported.
  static Regex oniguruma(std::string_view pattern);
  /// An expression that matches exactly `text`.
  static Regex literal(std::string_view text);

  /// The leftmost match that begins at or after `from`. Throws Error when backtracking exceeds the limit.
  std::optional<Range> find(std::string_view text, std::size_t from) const;

  /// All matches from left to right, and the ranges between them; together they cover `text`. An empty match
  /// is reported unless it begins where the previous match ends.
  struct Stretch {
    Range range;
    bool is_match;
  };
  std::vector<Stretch> tile(std::string_view text) const;

 private:
  Regex(std::string_view pcre2_pattern, std::string_view shown, unsigned options);
  int interpret(std::string_view text, std::size_t from, Range& found) const;

  std::shared_ptr<const pcre2_real_code_8> code_;
  std::string shown_;
  bool jit_ = false;
};

}  // namespace nemocube::tok
