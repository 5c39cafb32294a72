#include "data/chat/chat_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/chat/chat.h"

namespace nemocube {

namespace {

bool is_assistant(const Json& message) { return message.value("role", Json()) == "assistant"; }

void mark(std::vector<bool>& mask, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < std::min(end, mask.size()); ++i) mask[i] = true;
}

std::size_t count_blocks(const ChatTemplate& chat_template, const Chat& chat, std::size_t messages) {
  return messages == 0 ? 0 : chat_template.render(first_messages(chat, messages)).generation.size();
}

/// Takes the blocks of messages out that are not wanted.
void leave_out_blocks(std::vector<RenderedChat::Range>& blocks, const ChatTemplate& chat_template,
                      const Chat& chat, const ChosenTurns& turns) {
  for (std::size_t i = chat.messages.size(); i-- > 0;) {
    if (!is_assistant(chat.messages[i]) || turns.wanted(i)) continue;
    const auto number = [&](std::size_t messages) {
      return blocks.begin() + static_cast<std::ptrdiff_t>(
                                  std::min(count_blocks(chat_template, chat, messages), blocks.size()));
    };
    const auto begin = number(i), end = number(i + 1);
    if (begin < end) blocks.erase(begin, end);
  }
}

std::vector<bool> overlapping(const std::vector<TokenSpan>& tokens,
                              const std::vector<RenderedChat::Range>& blocks) {
  std::vector<bool> mask;
  auto block = blocks.begin();
  for (const TokenSpan& token : tokens) {
    while (block != blocks.end() && block->end <= token.begin) ++block;
    mask.push_back(block != blocks.end() && block->begin < token.end);
  }
  return mask;
}

ChatTokens tokens_by_blocks(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Chat& chat,
                            RenderedChat rendered, const ChosenTurns& turns) {
  const std::vector<TokenSpan> tokens = tokenizer.encode_with_library_offsets(rendered.text);
  ChatTokens result{std::move(rendered.text), {}, overlapping(tokens, rendered.generation)};
  for (const TokenSpan& token : tokens) result.ids.push_back(token.id);
  if (turns.last_run) keep_last_run(result.assistant);
  if (!turns.wanted) return result;
  leave_out_blocks(rendered.generation, chat_template, chat, turns);
  const std::vector<bool> wanted = overlapping(tokens, rendered.generation);
  for (std::size_t i = 0; i < wanted.size(); ++i) result.assistant[i] = result.assistant[i] && wanted[i];
  return result;
}

/// Finds turns by the lengths of shorter conversations.
class Prefixes {
 public:
  Prefixes(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Chat& chat,
           const std::vector<std::int64_t>& whole)
      : chat_template_(chat_template), tokenizer_(tokenizer), chat_(chat), whole_(whole) {}

  /// How many ids the first `count` messages take, once they are found to begin the whole conversation.
  std::size_t length(std::size_t count) const {
    if (count == 0) return 0;
    if (count == chat_.messages.size() && !chat_.add_generation_prompt) return whole_.size();
    const std::vector<std::int64_t> ids =
        tokenizer_.encode(chat_template_.render(first_messages(chat_, count)).text, false);
    require(
        begins(ids, whole_, tokenizer_), chat_template_.name(), ": the ids of the first ", count,
        " messages differ from the beginning of the whole conversation's ids at token ",
        std::ranges::mismatch(ids, whole_).in1 - ids.begin(),
        ", so the assistant's tokens cannot be told; want a template that writes earlier messages the same "
        "way when more follow, or {% generation %} blocks in it");
    return std::min(ids.size(), whole_.size());
  }
  /// Nothing where length() throws Error.
  std::optional<std::size_t> length_if_any(std::size_t count) const {
    try {
      return length(count);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

 private:
  const ChatTemplate& chat_template_;
  const Tokenizer& tokenizer_;
  const Chat& chat_;
  const std::vector<std::int64_t>& whole_;
};

/// Marks the last turn that has tokens, and those before it that end where the next one begins.
void mark_last_run(std::vector<bool>& mask, const Chat& chat, const Prefixes& prefixes,
                   const ChosenTurns& turns) {
  std::optional<std::size_t> run;  // its begin
  for (std::size_t i = chat.messages.size(); i-- > 0;) {
    if (!is_assistant(chat.messages[i])) continue;
    if (run && prefixes.length_if_any(i + 1) != run) return;
    const auto begin = run ? prefixes.length_if_any(i) : prefixes.length(i);
    if (!begin) return;
    const std::size_t end = run ? *run : prefixes.length(i + 1);
    if (!turns.wanted || turns.wanted(i)) mark(mask, *begin, end);
    if (*begin < end) run = begin;
  }
}

}  // namespace

Chat first_messages(const Chat& chat, std::size_t count) {
  Chat first = chat;
  first.add_generation_prompt = false;
  first.messages = Json(chat.messages.begin(), chat.messages.begin() + static_cast<std::ptrdiff_t>(count));
  return first;
}

bool begins(const std::vector<std::int64_t>& ids, const std::vector<std::int64_t>& whole,
            const Tokenizer& tokenizer) {
  std::ptrdiff_t compared = std::ssize(ids);
  if (tokenizer.eos_id() && !ids.empty() && ids.back() == *tokenizer.eos_id()) --compared;
  return std::ranges::mismatch(ids, whole).in1 - ids.begin() >= compared;
}

void keep_last_run(std::vector<bool>& mask) {
  const auto last = std::find(mask.rbegin(), mask.rend(), true);
  const auto before = std::find(last, mask.rend(), false);
  std::fill(before, mask.rend(), false);
}

ChatTokens chat_tokens(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Chat& chat,
                       const ChosenTurns& turns) {
  RenderedChat rendered = chat_template.render(chat);
  if (chat_template.has_generation_blocks())
    return tokens_by_blocks(chat_template, tokenizer, chat, std::move(rendered), turns);
  ChatTokens result{std::move(rendered.text), {}, {}};
  result.ids = tokenizer.encode(result.text, false);
  result.assistant.assign(result.ids.size(), false);
  const Prefixes prefixes(chat_template, tokenizer, chat, result.ids);
  if (turns.last_run) {
    mark_last_run(result.assistant, chat, prefixes, turns);
    return result;
  }
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    if (!is_assistant(chat.messages[i]) || (turns.wanted && !turns.wanted(i))) continue;
    const std::size_t begin = prefixes.length(i);
    mark(result.assistant, begin, prefixes.length(i + 1));
  }
  return result;
}

}  // namespace nemocube
