#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/json/json_ref.h"
#include "data/tokenizer/text.h"

namespace nemocube::tok {

/// SentencePiece's way to write spaces, as a pre-tokenizer and as a decoder.
struct Metaspace {
  enum class PrependScheme { always, first, never };

  std::string replacement;  ///< of a space: one character, mostly U+2581
  PrependScheme prepend_scheme = PrependScheme::always;
  bool split = true;

  /// Reads `replacement`, `prepend_scheme` ("always" where absent), `split` (true where absent) and the older
  /// `add_prefix_space`, which may only be false beside the scheme "never". Throws Error for other values.
  static Metaspace load(const JsonRef& spec);

  /// The pre-tokenizer. Replaces the spaces of each piece, and puts a replacement before pieces that do not
  /// begin with one: all (always), those that begin where the input begins (first), or none (never). With
  /// `split`, each replacement begins a new piece.
  void apply(AlignedText& text, std::vector<Range>& pieces) const;
};

}  // namespace nemocube::tok
