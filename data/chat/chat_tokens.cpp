#include "data/chat/chat_tokens.h"

#include <algorithm>

#include "core/utf8.h"
#include "data/chat/chat.h"

namespace nemocube {

namespace {

/// The first token that ends behind `byte`: of the tokens that share a character, the first. The number of tokens
/// where none does.
std::size_t token_at(const std::vector<TokenSpan>& tokens, std::size_t byte) {
  const auto found = std::ranges::upper_bound(tokens, byte, {}, &TokenSpan::end);
  return static_cast<std::size_t>(found - tokens.begin());
}

void mark(std::vector<bool>& mask, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < std::min(end, mask.size()); ++i) mask[i] = true;
}

ChatTokens tokens_by_blocks(RenderedChat rendered, const Tokenizer& tokenizer) {
  const std::vector<TokenSpan> tokens = tokenizer.encode_with_offsets(rendered.text, false);
  ChatTokens result;
  for (const TokenSpan& token : tokens) result.ids.push_back(token.id);
  result.assistant.assign(tokens.size(), false);
  for (const RenderedChat::Range& block : rendered.generation) {
    const std::size_t first = token_at(tokens, block.begin);
    if (first == tokens.size()) break;
    if (block.end == 0) continue;
    const std::size_t last = token_at(tokens, previous_character(rendered.text, block.end));
    mark(result.assistant, first, last == 0 ? tokens.size() : last + 1);
  }
  result.text = std::move(rendered.text);
  return result;
}

/// How many ids the first `count` messages take, once they are found to begin the whole conversation.
std::size_t prefix_length(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Chat& chat,
                          std::size_t count, const std::vector<std::int64_t>& whole) {
  if (count == 0) return 0;
  Chat prefix = chat;
  prefix.add_generation_prompt = false;
  prefix.messages = Json(chat.messages.begin(), chat.messages.begin() + static_cast<std::ptrdiff_t>(count));
  const std::vector<std::int64_t> ids = tokenizer.encode(chat_template.render(prefix).text, false);
  std::size_t compared = ids.size();
  const auto eos = tokenizer.eos_id();
  if (eos && !ids.empty() && ids.back() == *eos) --compared;
  const auto [differs, other] = std::mismatch(
      ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(compared), whole.begin(), whole.end());
  require(differs == ids.begin() + static_cast<std::ptrdiff_t>(compared), chat_template.name(),
          ": the ids of the first ", count,
          " messages differ from the beginning of the whole conversation's ids at token ",
          differs - ids.begin(),
          ", so the assistant's tokens cannot be told; want a template that writes earlier messages the same "
          "way when more follow, or {% generation %} blocks in it");
  return std::min(ids.size(), whole.size());
}

}  // namespace

ChatTokens chat_tokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Chat& chat) {
  RenderedChat rendered = chat_template.render(chat);
  if (chat_template.has_generation_blocks()) return tokens_by_blocks(std::move(rendered), tokenizer);
  ChatTokens result{std::move(rendered.text), {}, {}};
  result.ids = tokenizer.encode(result.text, false);
  result.assistant.assign(result.ids.size(), false);
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    if (chat.messages[i].value("role", Json()) != "assistant") continue;
    const std::size_t begin = prefix_length(chat_template, tokenizer, chat, i, result.ids);
    mark(result.assistant, begin, prefix_length(chat_template, tokenizer, chat, i + 1, result.ids));
  }
  return result;
}

}  // namespace nemocube
