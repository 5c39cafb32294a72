#pragma once
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace nemocube {

/// A compiled PCRE2 expression over UTF-8; many threads may use one at once.
class Pattern {
 public:
  /// Throws Error with the expression and the place of its fault.
  explicit Pattern(std::string_view expression);
  bool found_in(std::string_view text) const;  ///< whether there is a match. pre: `text` is valid UTF-8
  /// `text` with every match replaced by `by`, taken literally. pre: `text` is valid UTF-8
  std::string replace_all(std::string_view text, std::string_view by) const;

 private:
  std::shared_ptr<const pcre2_real_code_8> code_;
};

}  // namespace nemocube
