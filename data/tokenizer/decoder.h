#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer/json_ref.h"
#include "data/tokenizer/regex.h"

namespace nemocube::tok {

/// The `decoder` of a tokenizer.json: ByteLevel, ByteFallback, Fuse, Replace, Strip and Sequence. Without
/// one, tokens are joined by spaces.
class Decoder {
 public:
  /// `spec` may be absent. Throws Error naming a component that is not supported.
  static Decoder load(const std::optional<JsonRef>& spec);

  std::string decode(std::vector<std::string> tokens) const;

  /// The decoder is ByteLevel alone: the text is utf8_lossy() of the joined bytes of the tokens.
  bool is_byte_level() const { return steps_.size() == 1 && steps_[0].kind == Kind::byte_level; }
  /// Bytes of one token; its own spelling when it is not written in the byte alphabet.
  static std::string bytes_of(const std::string& token);

 private:
  enum class Kind { byte_level, byte_fallback, fuse, replace, strip };
  struct Step {
    Kind kind = Kind::fuse;
    std::optional<Regex> pattern;
    std::string content;  // replacement, or the character to strip
    std::int64_t start = 0;
    std::int64_t stop = 0;
  };
  void add(const JsonRef& spec, int depth);
  static std::vector<std::string> apply(const Step& step, std::vector<std::string> tokens);

  bool present_ = false;
  std::vector<Step> steps_;
};

}  // namespace nemocube::tok
