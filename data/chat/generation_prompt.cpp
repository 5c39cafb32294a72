#include "data/chat/generation_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "data/chat/chat.h"

namespace nemocube {

namespace {

using Ids = std::vector<std::int64_t>;
using Some = std::span<const std::int64_t>;

bool begins_with(Some ids, Some beginning) {
  return ids.size() >= beginning.size() && std::ranges::equal(ids.first(beginning.size()), beginning);
}

/// Renders beginnings of one conversation.
class Renderings {
 public:
  Renderings(const ChatTemplate& chat_template, const Tokenizer& tokenizer)
      : chat_template_(chat_template), tokenizer_(tokenizer) {}

  Ids ids(const Chat& chat) const { return tokenizer_.encode(chat_template_.render(chat).text, false); }

  /// How many of the first ids of `turn` the generation prompt behind `before` supplies. `plain`: the ids of
  /// `before` without it.
  std::size_t supplied(const Chat& before, const Ids& plain, Some turn) const {
    std::size_t most = 0;
    for (const bool thinking : {true, false}) {
      Chat asked = before;
      asked.add_generation_prompt = true;
      asked.variables["enable_thinking"] = thinking;
      const Ids with_prompt = ids(asked);
      if (!begins_with(with_prompt, plain)) continue;
      const Some prompt = Some(with_prompt).subspan(plain.size());
      if (begins_with(turn, prompt)) most = std::max(most, prompt.size());
    }
    return most;
  }

 private:
  const ChatTemplate& chat_template_;
  const Tokenizer& tokenizer_;
};

}  // namespace

bool unmark_generation_prompts(ChatTokens& tokens, const ChatTemplate& chat_template,
                               const Tokenizer& tokenizer, const Chat& chat) {
  const Renderings renderings(chat_template, tokenizer);
  bool left_one = false;
  auto end = tokens.assistant.end();  // of the ids in front of the turns that were looked at
  for (std::size_t i = chat.messages.size(); i-- > 0;) {
    if (chat.messages[i].value("role", Json()) != "assistant") continue;
    if (std::find(tokens.assistant.begin(), end, true) == end) break;
    if (i == 0) return true;
    const Chat before = first_messages(chat, i);
    const Ids plain = renderings.ids(before);
    if (!begins_with(tokens.ids, plain)) {
      left_one = true;
      continue;
    }
    const auto first = tokens.assistant.begin() + std::ssize(plain);
    if (first >= end || std::find(first, end, true) == end) continue;
    end = first;
    const std::size_t own = renderings.supplied(before, plain, Some(tokens.ids).subspan(plain.size()));
    std::fill(first, first + static_cast<std::ptrdiff_t>(own), false);
  }
  return left_one;
}

}  // namespace nemocube
