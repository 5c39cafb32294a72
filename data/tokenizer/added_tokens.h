#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/json/json_ref.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/declared_tokens.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/text.h"

namespace nemocube::tok {

struct AddedToken {
  std::string content;
  std::string matched{};  // content as it looks after normalization, when `normalized`
  std::int64_t id = 0;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
  std::string place{};  // the file and key that add the token; empty for tokenizer.json
};

/// Finds the longest of many strings that begins at a position.
class LongestMatch {
 public:
  /// Returns false when `text` has been added before.
  bool add(std::string_view text, std::size_t index);

  struct Match {
    std::size_t index;
    std::size_t length;
  };
  /// The longest string that begins at `pos`.
  std::optional<Match> at(std::string_view text, std::size_t pos) const;
  bool may_start(char byte) const { return starts_[static_cast<unsigned char>(byte)]; }
  bool empty() const { return ends_.size() <= 1; }

 private:
  static constexpr std::size_t no_index = ~std::size_t{0};

  std::array<bool, 256> starts_{};
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;  // (node << 8 | byte) -> node
  std::vector<std::size_t> ends_{no_index};                 // node -> index; node 0 is the root
};

/// The `added_tokens` of a tokenizer.json, and those of the files beside it.
class AddedTokens {
 public:
  /// `list` may be absent. Ids follow the rules of the format: the model's id for strings in its vocabulary,
  /// else the next free one. Throws Error when the list gives another id, and warns where a declared token
  /// does.
  static AddedTokens load(const std::optional<JsonRef>& list, const std::vector<DeclaredToken>& declared,
                          const Bpe& model, const Normalizer& normalizer);

  struct Segment {
    Range range;
    const AddedToken* token;  // null: ordinary text
  };
  /// Divides `text` at added tokens: those matched after normalization (`normalized`) or those matched
  /// before. The leftmost match wins, then the longest.
  std::vector<Segment> split(std::string_view text, bool normalized) const;

  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(std::int64_t id) const;
  bool is_special(std::string_view content) const { return specials_.contains(content); }
  std::int64_t highest_id() const { return highest_id_; }

 private:
  /// Adds a token, or replaces that of the same content. Sets its id, and `matched`.
  const AddedToken& add(AddedToken token, const Bpe& model, const Normalizer& normalizer);
  bool stands_alone(std::string_view text, Range range) const;

  std::vector<AddedToken> tokens_;
  StringMap<std::size_t> by_content_;
  std::unordered_map<std::int64_t, std::size_t> by_id_;
  StringMap<bool> specials_;
  LongestMatch raw_;
  LongestMatch normalized_;
  std::int64_t highest_id_ = -1;
  // Matches a word character for `single_word`; \w of pre-tokenizers is another set.
  Regex word_ = Regex::oniguruma("\\A[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200c\\u200d]");
};

}  // namespace nemocube::tok
