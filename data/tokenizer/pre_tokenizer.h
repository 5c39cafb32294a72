#pragma once
#include <optional>
#include <vector>

#include "data/json/json_ref.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/text.h"

namespace nemocube::tok {

/// The `pre_tokenizer` of a tokenizer.json: Split, Digits, ByteLevel (as the last step) and Sequence.
class PreTokenizer {
 public:
  /// `spec` may be absent: the text is then one piece. Throws Error naming a component that is not supported.
  static PreTokenizer load(const std::optional<JsonRef>& spec);

  /// Whether the vocabulary is byte-level, so that pieces are sequences of bytes. The model (Bpe), not this
  /// class, maps bytes to the byte alphabet.
  bool byte_level() const { return byte_level_; }

  /// Cuts `text` into pieces, none of them empty. May insert spaces.
  std::vector<Range> split(AlignedText& text) const;

 private:
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  struct Step {
    std::optional<Regex> pattern;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
    bool add_prefix_space = false;  // before splitting
  };
  void add(const JsonRef& spec, int depth);
  static Behavior load_behavior(const JsonRef& name);
  static void apply(const Step& step, std::string_view text, Range piece, std::vector<Range>& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace nemocube::tok
