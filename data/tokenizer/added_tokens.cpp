#include "data/tokenizer/added_tokens.h"

#include <algorithm>

#include "core/log.h"
#include "core/quote.h"
#include "core/utf8.h"

namespace nemocube::tok {

bool LongestMatch::add(std::string_view text, std::size_t index) {
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (node == 0) starts_[byte] = true;
    const auto [edge, is_new] =
        edges_.try_emplace((std::uint64_t{node} << 8) | byte, static_cast<std::uint32_t>(ends_.size()));
    if (is_new) ends_.push_back(no_index);
    node = edge->second;
  }
  if (ends_[node] != no_index) return false;
  ends_[node] = index;
  return true;
}

std::optional<LongestMatch::Match> LongestMatch::at(std::string_view text, std::size_t pos) const {
  std::optional<Match> best;
  std::uint32_t node = 0;
  for (std::size_t i = pos; i < text.size(); ++i) {
    const auto edge = edges_.find((std::uint64_t{node} << 8) | static_cast<unsigned char>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (ends_[node] != no_index) best = Match{ends_[node], i + 1 - pos};
  }
  return best;
}

const AddedToken& AddedTokens::add(AddedToken token, const Bpe& model, const Normalizer& normalizer) {
  const AddedToken* known = find(token.content);
  const auto in_model = model.token_to_id(token.content);
  token.id = known      ? known->id
             : in_model ? std::int64_t{*in_model}
                        : std::max(static_cast<std::int64_t>(model.size()), highest_id_ + 1);
  token.matched = token.normalized ? normalizer.apply(token.content) : token.content;
  if (token.special) specials_.emplace(token.content, true);
  highest_id_ = std::max(highest_id_, token.id);
  if (known) {
    token.place = known->place;
    AddedToken& same = tokens_[by_content_.find(token.content)->second];
    return same = std::move(token);
  }
  by_content_.emplace(token.content, tokens_.size());
  by_id_[token.id] = tokens_.size();
  return tokens_.emplace_back(std::move(token));
}

AddedTokens AddedTokens::load(const std::optional<JsonRef>& list, const std::vector<DeclaredToken>& declared,
                              const Bpe& model, const Normalizer& normalizer) {
  AddedTokens out;
  for (const JsonRef& entry : list ? list->elements() : std::vector<JsonRef>()) {
    AddedToken token;
    token.content = entry.at("content").string();
    const std::int64_t given = entry.at("id").integer();
    token.single_word = entry.at("single_word").boolean();
    token.lstrip = entry.at("lstrip").boolean();
    token.rstrip = entry.at("rstrip").boolean();
    token.normalized = entry.at("normalized").boolean();
    token.special = entry.at("special").boolean();
    if (token.content.empty()) continue;

    const bool known = out.find(token.content) != nullptr;
    const AddedToken& added = out.add(std::move(token), model, normalizer);
    if (added.id != given) {
      entry.fail("\"", added.content, "\" has the id ", given, ", but ",
                 known ? "the same string was added before with the id "
                 : model.token_to_id(added.content)
                     ? "the model's vocabulary gives it the id "
                     : "added tokens continue the vocabulary without gaps, which gives ",
                 added.id);
    }
    if (given > highest_token_id)
      entry.fail("has the id ", given, "; the highest supported is ", highest_token_id);
    if (added.matched.empty()) entry.fail("\"", added.content, "\" is empty after normalization");
  }
  for (const DeclaredToken& one : declared) {
    const AddedToken& added = out.add({.content = one.content,
                                       .single_word = one.single_word,
                                       .lstrip = one.lstrip,
                                       .rstrip = one.rstrip,
                                       .normalized = one.normalized.value_or(!one.special),
                                       .special = one.special,
                                       .place = one.place},
                                      model, normalizer);
    require(!added.matched.empty(), one.place, ": ", quote(one.content), " is empty after normalization");
    require(added.id <= highest_token_id, one.place, ": ", quote(one.content), " has the id ", added.id,
            "; the highest supported is ", highest_token_id);
    if (one.id && *one.id != added.id)
      log_warning(
          one.place, " gives ", quote(one.content), " the id ", *one.id, ", but the token has the id ",
          added.id,
          ", here as in AutoTokenizer: the vocabulary has it, or new tokens continue it without gaps");
  }
  for (std::size_t i = 0; i < out.tokens_.size(); ++i) {
    const AddedToken& token = out.tokens_[i];
    if ((token.normalized ? out.normalized_ : out.raw_).add(token.matched, i)) continue;
    if (token.place.empty()) list->fail("has two tokens that are matched as \"", token.matched, "\"");
    fail(token.place, ": ", quote(token.content), " is matched as ", quote(token.matched),
         ", and so is a token that was added before");
  }
  return out;
}

bool AddedTokens::stands_alone(std::string_view text, Range range) const {
  const auto is_word_at = [&](std::size_t pos) {
    return word_.find(text.substr(pos, utf8_step(text, pos).length), 0).has_value();
  };
  if (range.begin > 0 && is_word_at(previous_character(text, range.begin))) return false;
  return range.end == text.size() || !is_word_at(range.end);
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text, bool normalized) const {
  const LongestMatch& matcher = normalized ? normalized_ : raw_;
  std::vector<Segment> out;
  std::size_t covered = 0;
  for (std::size_t pos = 0; pos < text.size() && !matcher.empty();) {
    const auto match = matcher.may_start(text[pos]) ? matcher.at(text, pos) : std::nullopt;
    if (!match) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[match->index];
    Range range{pos, pos + match->length};
    // The search continues after the match even if the match is refused below. White space that rstrip takes
    // below can be part of the next match.
    pos = range.end;
    if (token.single_word && !stands_alone(text, range)) continue;
    if (token.lstrip) {
      std::size_t begin = range.begin;
      while (begin > 0) {
        const std::size_t before = previous_character(text, begin);
        if (!is_white_space(utf8_step(text, before).character)) break;
        begin = before;
      }
      range.begin = std::max(begin, covered);
    }
    if (token.rstrip) {
      while (range.end < text.size()) {
        const Utf8Step step = utf8_step(text, range.end);
        if (!is_white_space(step.character)) break;
        range.end += step.length;
      }
    }
    if (range.begin >= range.end) continue;  // the token before has taken all of this white space
    if (covered < range.begin) out.push_back({{covered, range.begin}, nullptr});
    out.push_back({range, &token});
    covered = range.end;
  }
  if (covered < text.size()) out.push_back({{covered, text.size()}, nullptr});
  return out;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find(std::int64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

}  // namespace nemocube::tok
