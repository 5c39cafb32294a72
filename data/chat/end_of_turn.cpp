#include "data/chat/end_of_turn.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "data/chat/chat.h"

namespace nemocube {

namespace {

/// What the template writes behind an answer.
std::string text_behind_answer(const ChatTemplate& chat_template) {
  const std::string answer = "Yes, it does.";
  Chat chat;
  chat.messages = {{{"role", "user"}, {"content", "Does it rain?"}},
                   {{"role", "assistant"}, {"content", answer}}};
  try {
    const std::string text = chat_template.render(chat).text;
    const std::size_t begin = text.rfind(answer);
    return begin == text.npos ? "" : text.substr(begin + answer.size());
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

std::optional<std::int64_t> end_of_turn(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                        std::span<const std::int64_t> stop_ids) {
  std::optional<std::int64_t> special, added;
  for (const std::int64_t id : tokenizer.encode(text_behind_answer(chat_template), false)) {
    if (std::ranges::find(stop_ids, id) != stop_ids.end()) return std::nullopt;
    if (tokenizer.is_special(id)) special = id;
    if (tokenizer.is_added(id)) added = id;
  }
  return special ? special : added;
}

}  // namespace nemocube
