#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/utf8.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/byte_level.h"

namespace nemocube::tok {

Bpe Bpe::load(const JsonRef& model, bool byte_level) {
  if (const auto type = model.find("type"); type && type->string() != "BPE") {
    type->fail("is \"", type->string(), "\"; only BPE is supported");
  }
  Bpe out;
  out.byte_level_ = byte_level;
  out.ignore_merges_ = model.boolean_or("ignore_merges", false);
  out.byte_fallback_ = model.boolean_or("byte_fallback", false);
  out.fuse_unk_ = model.boolean_or("fuse_unk", false);
  if (const auto unk = model.find("unk_token")) out.unk_token_ = unk->string();
  if (const auto dropout = model.find("dropout")) {
    if (!dropout->value().is_number()) dropout->fail("must be a number");
    if (dropout->value().get<double>() != 0) dropout->fail("is not zero; random merges are not supported");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = model.find(key);
    if (affix && !affix->string().empty()) affix->fail("is not supported");
  }
  out.load_vocabulary(model.at("vocab"));
  out.load_merges(model.at("merges"));
  out.index_whole_pieces();
  return out;
}

void Bpe::load_vocabulary(const JsonRef& vocab) {
  if (!vocab.is_object()) vocab.fail("must be an object of token to id");
  std::int64_t highest = -1;
  by_token_.reserve(vocab.value().size());
  for (const auto& [token, value] : vocab.value().items()) {
    const std::int64_t id = vocab.inside(value, cat("[\"", token, "\"]")).integer();
    if (id < 0 || id > highest_token_id) {
      vocab.fail("gives \"", token, "\" the id ", id, "; ids must lie in [0, ", highest_token_id, "]");
    }
    by_token_.emplace(token, static_cast<TokenId>(id));
    highest = std::max(highest, id);
  }
  by_id_.assign(static_cast<std::size_t>(highest + 1), nullptr);
  for (const auto& [token, id] : by_token_) {
    const std::string*& slot = by_id_[id];
    if (slot) vocab.fail("gives both \"", *slot, "\" and \"", token, "\" the id ", id);
    slot = &token;
  }
}

void Bpe::load_merges(const JsonRef& merges) {
  const std::vector<JsonRef> list = merges.elements();
  merges_ = MergeTable(list.size());
  const bool legacy = !list.empty() && list.front().is_string();
  std::uint32_t rank = 0;
  for (const JsonRef& merge : list) {
    if (legacy) {
      const std::string_view text = merge.string();
      if (text.starts_with("#version")) continue;
      const std::size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        merge.fail("is \"", text, "\"; a merge must be two tokens and one space");
      }
      add_merge(merge, rank++, text.substr(0, space), text.substr(space + 1));
    } else {
      const std::vector<JsonRef> parts = merge.elements();
      if (parts.size() != 2) merge.fail("has ", parts.size(), " parts; a merge must have two");
      add_merge(merge, rank++, parts[0].string(), parts[1].string());
    }
  }
}

void Bpe::add_merge(const JsonRef& place, std::uint32_t rank, std::string_view left, std::string_view right) {
  const auto id_of = [&](std::string_view token) {
    const auto id = token_to_id(token);
    if (!id) place.fail("(\"", left, "\", \"", right, "\"): \"", token, "\" is not in the vocabulary");
    return *id;
  };
  const TokenId left_id = id_of(left);
  const TokenId right_id = id_of(right);
  std::string merged(left);  // not by cat(), which takes longer: there are hundreds of thousands
  merged += right;
  merges_.set(left_id, right_id, {rank, id_of(merged)});
}

/// Most pieces of ordinary text are entries of the vocabulary, and merging their symbols would give the same
/// entry. For such pieces encode() finds the entry by one lookup and merges nothing.
void Bpe::index_whole_pieces() {
  byte_ids_.fill(-1);
  whole_.reserve(by_token_.size());
  for (const auto& [token, id] : by_token_) {
    std::string bytes = token;
    if (byte_level_) {
      auto spelled = bytes_of_token(token);
      if (!spelled) continue;
      bytes = std::move(*spelled);
    }
    if (bytes.empty()) continue;
    if (bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes[0])] = id;
    whole_.emplace(std::move(bytes), Whole{id, ignore_merges_});
  }
  if (ignore_merges_) return;
  // make_merged() runs without the unknown token, because only encode() may report that it is missing.
  const std::optional<std::string> unk = std::move(unk_token_);
  unk_token_.reset();
  std::vector<Symbol> symbols;
  for (auto& [bytes, whole] : whole_) {
    make_merged(bytes, symbols);
    whole.direct = symbols.size() == 1 && symbols[0].id == whole.id;
  }
  unk_token_ = unk;
}

}  // namespace nemocube::tok
