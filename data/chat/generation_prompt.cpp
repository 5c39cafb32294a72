#include "data/chat/generation_prompt.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "data/chat/chat.h"

namespace nemocube {

namespace {

using Ids = std::vector<std::int64_t>;
using Some = std::span<const std::int64_t>;

std::size_t common_prefix(Some a, Some b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

std::size_t common_suffix(Some a, Some b) {
  std::size_t same = 0;
  while (same < std::min(a.size(), b.size()) && a[a.size() - 1 - same] == b[b.size() - 1 - same]) ++same;
  return same;
}

/// How many of the first ids of `turn` are those that a generation prompt adds, and whether these are all that it adds.
/// Complete is better than long.
using Match = std::pair<bool, std::size_t>;

/// `added`: the ids from where a rendering with generation prompt differs from the one without. They may begin with changes of
/// what stands before the prompt, so the prompt may begin at the last place with the first id of the turn, too.
Match match_prompt(Some added, Some turn, std::optional<std::int64_t> eos) {
  Match best{false, 0};
  if (added.empty() || turn.empty()) return best;
  const auto consider = [&](Some prompt) {
    const std::size_t same = common_prefix(prompt, turn);
    best = std::max(best, Match{same == prompt.size(), same});
  };
  if (added[0] == turn[0]) consider(added);
  std::size_t last = added.size() - 1;
  while (last > 0 && added[last] != turn[0]) --last;
  // A prompt ends no turn.
  const Some rest = added.subspan(last);
  if (last > 0 && !(eos && std::ranges::find(rest, *eos) != rest.end())) consider(rest);
  return best;
}

/// A turn in which `text` stands for all that the model writes.
Json with_text(const Json& message, const char* text) {
  Json changed = message;
  changed.erase("tool_calls");
  changed["content"] = text;
  for (const char* key : {"reasoning_content", "thinking", "reasoning"})
    if (const auto found = changed.find(key); found != changed.end() && *found != "" && !found->is_null())
      *found = text;
  return changed;
}

/// Renders beginnings of one conversation.
class Renderings {
 public:
  Renderings(const ChatTemplate& chat_template, const Tokenizer& tokenizer, const Chat& chat)
      : chat_template_(chat_template), tokenizer_(tokenizer), chat_(chat) {}

  Ids ids(const Chat& chat) const { return tokenizer_.encode(chat_template_.render(chat).text, false); }

  Match prompt_of(const Chat& before, const Ids& plain, Some turn) const {
    Match best{false, 0};
    for (const bool thinking : {true, false}) {
      Chat asked = before;
      asked.add_generation_prompt = true;
      asked.variables["enable_thinking"] = thinking;
      const Ids with_prompt = ids(asked);
      const Some added = Some(with_prompt).subspan(common_prefix(plain, with_prompt));
      best = std::max(best, match_prompt(added, turn, tokenizer_.eos_id()));
    }
    return best;
  }

  /// How many of the first ids of the turn of message `number`, which begins at `begin` of `whole`, do not depend on what the
  /// model wrote.
  std::size_t independent(std::size_t number, const Ids& whole, std::size_t begin) const {
    const Some turn = Some(whole).subspan(begin);
    std::array<Ids, 3> rendered;
    std::array<Some, 3> turns;
    constexpr std::array<const char*, 3> texts{"", "0", "1"};
    for (std::size_t i = 0; i < texts.size(); ++i) {
      Chat chat = first_messages(chat_, number + 1);
      chat.messages[number] = with_text(chat.messages[number], texts[i]);
      rendered[i] = ids(chat);
      if (common_prefix(rendered[i], whole) < begin) return 0;
      turns[i] = Some(rendered[i]).subspan(begin);
    }
    const auto& [empty, zero, one] = turns;
    if (std::ranges::equal(zero, one)) return 0;
    const std::size_t same = std::min({common_prefix(zero, turn), common_prefix(one, turn),
                                       common_prefix(zero, one), common_prefix(empty, turn)});
    // The end of an empty turn closes it, whatever its ids are.
    const std::size_t closing = std::max(common_suffix(empty, zero), common_suffix(empty, one));
    return std::min(same, empty.size() - closing);
  }

 private:
  const ChatTemplate& chat_template_;
  const Tokenizer& tokenizer_;
  const Chat& chat_;
};

}  // namespace

bool unmark_generation_prompts(ChatTokens& tokens, const ChatTemplate& chat_template,
                               const Tokenizer& tokenizer, const Chat& chat) {
  const Renderings renderings(chat_template, tokenizer, chat);
  bool left_one = false;
  auto end = tokens.assistant.end();  // of the ids in front of the turns that were looked at
  for (std::size_t i = chat.messages.size(); i-- > 0;) {
    if (chat.messages[i].value("role", Json()) != "assistant") continue;
    if (std::find(tokens.assistant.begin(), end, true) == end) break;
    if (i == 0) return true;
    const Chat before = first_messages(chat, i);
    const Ids plain = renderings.ids(before);
    if (plain.size() > tokens.ids.size() || !begins(plain, tokens.ids, tokenizer)) {
      left_one = true;
      continue;
    }
    const std::size_t begin = common_prefix(plain, tokens.ids);
    const auto first = tokens.assistant.begin() + static_cast<std::ptrdiff_t>(begin);
    if (first >= end || std::find(first, end, true) == end) continue;
    end = first;
    const std::size_t prompt = renderings.prompt_of(before, plain, Some(tokens.ids).subspan(begin)).second;
    if (prompt == 0) continue;
    const std::size_t own = std::min(prompt, renderings.independent(i, tokens.ids, begin));
    std::fill(first, first + static_cast<std::ptrdiff_t>(own), false);
  }
  return left_one;
}

}  // namespace nemocube
