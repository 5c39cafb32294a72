#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/json/json_ref.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocabulary.h"

namespace nemocube::tok {

/// The BPE model of a tokenizer.json. Immutable after load.
class Bpe {
 public:
  Bpe() = default;
  Bpe(const Bpe&) = delete;  // by_id_ points into by_token_
  Bpe& operator=(const Bpe&) = delete;
  Bpe(Bpe&&) = default;
  Bpe& operator=(Bpe&&) = default;

  /// `byte_level`: pieces are bytes and the vocabulary spells them in the byte alphabet (byte_level.h).
  /// Throws Error naming a merge that uses or makes a string that is not in the vocabulary, and for dropout,
  /// continuing_subword_prefix and end_of_word_suffix, which are not supported.
  static Bpe load(const JsonRef& model, bool byte_level);

  struct Symbol {
    TokenId id;
    std::uint32_t rank;  // of the merge with the next symbol
    TokenId result;      // of that merge
    std::uint32_t begin, end;
    std::uint32_t next, previous;  // used by the long form of merging
  };

  /// Appends the tokens of one piece. Offsets are byte positions in `piece`, plus `shift`. The time is nearly
  /// linear in the length of the piece. `scratch` only saves allocations.
  void encode(std::string_view piece, std::size_t shift, std::vector<TokenSpan>& out,
              std::vector<Symbol>& scratch) const;

  std::optional<TokenId> token_to_id(std::string_view token) const;
  /// Nothing for ids that name no token.
  const std::string* id_to_token(std::int64_t id) const;
  std::int64_t highest_id() const { return static_cast<std::int64_t>(by_id_.size()) - 1; }
  std::size_t size() const { return by_token_.size(); }

 private:
  static constexpr std::uint32_t no_rank = ~std::uint32_t{0};
  struct Whole {
    TokenId id;
    bool direct;  // the piece is this one token
  };

  void load_vocabulary(const JsonRef& vocab);
  void load_merges(const JsonRef& merges);
  void add_merge(const JsonRef& place, std::uint32_t rank, std::string_view left, std::string_view right);
  void index_whole_pieces();

  void make_symbols(std::string_view piece, std::vector<Symbol>& out) const;
  std::vector<TokenId> fallback_of(std::string_view character) const;
  void refresh(Symbol& symbol, TokenId right) const;
  void merge_short(std::vector<Symbol>& symbols) const;
  void merge_long(std::vector<Symbol>& symbols) const;
  void make_merged(std::string_view piece, std::vector<Symbol>& symbols) const;

  bool byte_level_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  std::optional<std::string> unk_token_;
  StringMap<TokenId> by_token_;
  std::vector<const std::string*> by_id_;  // keys of by_token_
  MergeTable merges_;
  std::array<std::int64_t, 256> byte_ids_{};  // of single bytes (byte level) or ASCII characters; -1: none
  StringMap<Whole> whole_;                    // vocabulary by the bytes of a piece
};

}  // namespace nemocube::tok
