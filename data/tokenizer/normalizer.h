#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/json/json_ref.h"
#include "data/tokenizer/normal_form.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/text.h"

namespace nemocube::tok {

/// The `normalizer` of a tokenizer.json: NFC, NFD, NFKC, NFKD (see normal_form.h), Replace, Prepend, Strip
/// and Sequence.
class Normalizer {
 public:
  /// `spec` may be absent. Throws Error naming a component that is not supported.
  static Normalizer load(const std::optional<JsonRef>& spec);

  void apply(AlignedText& text) const;
  std::string apply(std::string_view text) const;

 private:
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Step {
    std::optional<NormalForm> form;
    std::optional<Replace> replace;
    std::string prepend;
    bool strip_left = false;
    bool strip_right = false;
  };
  void add(const JsonRef& spec, int depth);
  static void apply(const Step& step, AlignedText& text);

  std::vector<Step> steps_;
};

/// The `pattern` member of Split and Replace: {"String": ...} or {"Regex": ...}.
Regex load_pattern(const JsonRef& owner);

/// Sequences nested deeper than this are refused.
inline constexpr int deepest_sequence = 32;

}  // namespace nemocube::tok
