#pragma once
#include <optional>
#include <vector>

#include "data/json/json_ref.h"
#include "data/tokenizer/metaspace.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/text.h"

namespace nemocube::tok {

/// The `pre_tokenizer` of a tokenizer.json: Split, Digits, Punctuation, Metaspace, ByteLevel and Sequence.
/// Digits are \p{N}. Punctuation is \p{P} and the ASCII symbols $+<=>^`|~. The `tokenizers` library has the
/// table of Unicode 8 for punctuation, PCRE2 a newer one: 104 characters up to Unicode 14 are punctuation
/// here alone, and U+166D and U+111C9 there alone.
class PreTokenizer {
 public:
  /// `spec` may be absent: the text is then one piece. Throws Error naming a component that is not supported.
  static PreTokenizer load(const std::optional<JsonRef>& spec);

  /// Whether ByteLevel is the last step, so that pieces are sequences of bytes. The model (Bpe), not this
  /// class, then maps bytes to the byte alphabet. Steps behind ByteLevel see the byte alphabet instead, and
  /// the model gets their pieces as characters.
  bool byte_level() const { return byte_level_; }

  /// Cuts `text` into pieces, none of them empty. May insert spaces, and writes spaces and bytes as the steps
  /// say.
  std::vector<Range> split(AlignedText& text) const;

 private:
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  struct Step {
    std::optional<Regex> pattern;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
    bool add_prefix_space = false;  // before splitting
    bool spells_bytes = false;      // after splitting
    std::optional<Metaspace> metaspace{};
  };
  void add(const JsonRef& spec, int depth);
  static Behavior load_behavior(const JsonRef& name);
  static void apply(const Step& step, std::string_view text, Range piece, std::vector<Range>& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace nemocube::tok
