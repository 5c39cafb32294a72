#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/json/json_ref.h"
#include "data/tokenizer/metaspace.h"
#include "data/tokenizer/regex.h"

namespace nemocube::tok {

/// The `decoder` of a tokenizer.json: ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace and
/// Sequence. Without one, tokens are joined by spaces. DecoderStream does the decoding.
class Decoder {
 public:
  struct Step {
    enum class Kind { join_with_spaces, byte_level, byte_fallback, fuse, replace, strip, metaspace };
    Kind kind = Kind::join_with_spaces;
    std::optional<Regex> pattern;      ///< to be replaced
    std::string literal;               ///< the pattern, where it is a text of at least one byte
    std::string content;               ///< replacement, or the character to strip
    std::int64_t start = 0, stop = 0;  ///< how many to strip at most
    std::optional<Metaspace> metaspace{};
  };

  /// `spec` may be absent. Throws Error naming a component that is not supported.
  static Decoder load(const std::optional<JsonRef>& spec);

  const std::vector<Step>& steps() const { return steps_; }

 private:
  void add(const JsonRef& spec, int depth);

  std::vector<Step> steps_;
};

}  // namespace nemocube::tok
