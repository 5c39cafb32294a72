#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "core/utf8.h"
#include "data/tokenizer/byte_level.h"

namespace nemocube::tok {
namespace {

// Pieces of at most this many symbols are merged by scanning all symbols for the lowest rank, which is faster
// than a heap for short pieces.
constexpr std::size_t short_piece = 48;
constexpr std::uint32_t none = ~std::uint32_t{0};

}  // namespace

void Bpe::refresh(Symbol& symbol, TokenId right) const {
  const MergeTable::Merge* merge = merges_.find(symbol.id, right);
  symbol.rank = merge ? merge->rank : no_rank;
  symbol.result = merge ? merge->result : 0;
}

/// Tokens `<0x..>` of the bytes of a character that is not in the vocabulary; empty unless all exist.
std::vector<TokenId> Bpe::fallback_of(std::string_view character) const {
  static const char digits[] = "0123456789ABCDEF";
  std::vector<TokenId> out;
  for (const char c : character) {
    const auto byte = static_cast<unsigned char>(c);
    const char name[] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
    const auto id = token_to_id(std::string_view(name, sizeof name));
    if (!id) return {};
    out.push_back(*id);
  }
  return out;
}

void Bpe::make_symbols(std::string_view piece, std::vector<Symbol>& out) const {
  out.clear();
  // Tokens stand for bytes in the order of tokens, also where an unknown token is added after the tokens of
  // later bytes (see below).
  std::uint32_t covered = 0;
  const auto add = [&](TokenId id, std::size_t bytes) {
    const std::uint32_t begin = covered;
    covered += static_cast<std::uint32_t>(bytes);
    out.push_back({id, no_rank, 0, begin, covered, none, none});
  };
  std::size_t unknown = 0;  // bytes of the unknown token that is not added yet
  std::optional<TokenId> unknown_id;
  const auto flush = [&] {
    if (unknown > 0) add(*unknown_id, unknown);
    unknown = 0;
  };
  for (std::size_t pos = 0; pos < piece.size();) {
    const std::size_t begin = pos;
    const auto lead = static_cast<unsigned char>(piece[pos]);
    const bool by_table = byte_level_ || lead < 0x80;
    pos += by_table ? 1 : utf8_step(piece, pos).length;
    std::optional<TokenId> id;
    if (!by_table) {
      id = token_to_id(piece.substr(begin, pos - begin));
    } else if (byte_ids_[lead] >= 0) {
      id = static_cast<TokenId>(byte_ids_[lead]);
    }
    if (id) {
      flush();
      add(*id, pos - begin);
      continue;
    }
    std::string character;
    if (byte_level_) {
      append_utf8(character, byte_to_character(lead));
    } else {
      character = piece.substr(begin, pos - begin);
    }
    if (byte_fallback_) {
      // An unknown token that is not yet added comes after these byte tokens, as in the tokenizers library.
      const std::vector<TokenId> bytes = fallback_of(character);
      for (std::size_t i = 0; i < bytes.size(); ++i) add(bytes[i], begin + i < pos ? 1 : 0);
      if (!bytes.empty()) continue;
    }
    if (!unk_token_) {
      covered += static_cast<std::uint32_t>(pos - begin);
      continue;
    }
    if (unknown > 0 && fuse_unk_) {
      unknown += pos - begin;
      continue;
    }
    flush();
    unknown_id = token_to_id(*unk_token_);
    require(unknown_id.has_value(), "tokenizer: unk_token \"", *unk_token_,
            "\" is not in the vocabulary, but \"", character, "\" needs it");
    unknown = pos - begin;
  }
  flush();
}

void Bpe::merge_short(std::vector<Symbol>& symbols) const {
  while (symbols.size() > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < symbols.size(); ++i) {
      if (symbols[i].rank < symbols[best].rank) best = i;
    }
    Symbol& left = symbols[best];
    if (left.rank == no_rank) return;
    left.id = left.result;
    left.end = symbols[best + 1].end;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    if (best + 1 < symbols.size()) {
      refresh(symbols[best], symbols[best + 1].id);
    } else {
      symbols[best].rank = no_rank;
    }
    if (best > 0) refresh(symbols[best - 1], symbols[best].id);
  }
}

void Bpe::merge_long(std::vector<Symbol>& symbols) const {
  // Entries are rank << 32 | position: the lowest rank comes first, and of equal ranks the leftmost. An entry
  // whose symbols have since been merged with others stays in the heap and is skipped when it comes up.
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> queue;
  const auto push = [&](std::uint32_t at) {
    if (symbols[at].rank != no_rank) queue.push((std::uint64_t{symbols[at].rank} << 32) | at);
  };
  const auto count = static_cast<std::uint32_t>(symbols.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    symbols[i].previous = i == 0 ? none : i - 1;
    symbols[i].next = i + 1 < count ? i + 1 : none;
    push(i);
  }
  std::vector<bool> removed(count, false);
  while (!queue.empty()) {
    const auto rank = static_cast<std::uint32_t>(queue.top() >> 32);
    const auto at = static_cast<std::uint32_t>(queue.top());
    queue.pop();
    if (removed[at] || symbols[at].rank != rank) continue;
    Symbol& left = symbols[at];
    const Symbol& right = symbols[left.next];
    removed[left.next] = true;
    left.id = left.result;
    left.end = right.end;
    left.next = right.next;
    left.rank = no_rank;
    if (left.next != none) {
      symbols[left.next].previous = at;
      refresh(left, symbols[left.next].id);
      push(at);
    }
    if (left.previous != none) {
      refresh(symbols[left.previous], left.id);
      push(left.previous);
    }
  }
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!removed[i]) symbols[kept++] = symbols[i];
  }
  symbols.resize(kept);
}

void Bpe::make_merged(std::string_view piece, std::vector<Symbol>& symbols) const {
  require(piece.size() < none, "tokenizer: a piece of ", piece.size(), " bytes; the limit is 4 GiB");
  make_symbols(piece, symbols);
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) refresh(symbols[i], symbols[i + 1].id);
  if (symbols.size() <= short_piece) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
}

void Bpe::encode(std::string_view piece, std::size_t shift, std::vector<TokenSpan>& out,
                 std::vector<Symbol>& scratch) const {
  const auto whole = whole_.find(piece);
  if (whole != whole_.end() && whole->second.direct) {
    out.push_back({whole->second.id, shift, shift + piece.size()});
    return;
  }
  make_merged(piece, scratch);
  for (const Symbol& s : scratch) out.push_back({s.id, shift + s.begin, shift + s.end});
}

std::optional<TokenId> Bpe::token_to_id(std::string_view token) const {
  const auto found = by_token_.find(token);
  if (found == by_token_.end()) return std::nullopt;
  return found->second;
}

const std::string* Bpe::id_to_token(std::int64_t id) const {
  return id >= 0 && id <= highest_id() ? by_id_[static_cast<std::size_t>(id)] : nullptr;
}

}  // namespace nemocube::tok
