#include "data/datasets/chat_row.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/quote.h"
#include "core/warn_once.h"
#include "data/chat/chat.h"
#include "data/chat/chat_tokens.h"
#include "data/chat/generation_prompt.h"
#include "data/datasets/turn_weight.h"

namespace nemocube {

namespace {

/// The names under which templates find the reasoning of a message.
constexpr std::array<const char*, 3> reasoning_keys{"reasoning_content", "thinking", "reasoning"};

/// Takes the reasoning out of a message. False when it had none.
bool clear_reasoning(Json& message) {
  bool found = false;
  for (const char* key : reasoning_keys)
    if (const auto at = message.find(key); at != message.end() && *at != "" && !at->is_null()) {
      *at = "";
      found = true;
    }
  return found;
}

void unmark_reasoning(ChatTokens& tokens, const Chat& chat, const ChatTemplate& chat_template,
                      const Tokenizer& tokenizer) {
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    if (chat.messages[i].value("role", Json()) != "assistant") continue;
    Chat without = chat;
    if (!clear_reasoning(without.messages[i])) continue;
    const std::vector<std::int64_t> ids = tokenizer.encode(chat_template.render(without).text, false);
    const auto begin = std::ranges::mismatch(tokens.ids, ids).in1 - tokens.ids.begin();
    const auto shorter = std::min(std::ssize(tokens.ids), std::ssize(ids));
    std::ptrdiff_t same = 0;  // ids at the end
    while (same < shorter - begin && tokens.ids.rbegin()[same] == ids.rbegin()[same]) ++same;
    std::fill(tokens.assistant.begin() + begin, tokens.assistant.end() - same, false);
  }
}

/// As NeMo AutoModel does, but once for a template, and not where it writes all keys of a message whatever
/// their names are.
void warn_of_lost_reasoning(const std::string& id, const Chat& chat, const ChatTemplate& chat_template) {
  if (chat_template.names_reasoning()) return;
  Chat without = chat;
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < chat.messages.size(); ++i)
    if (chat.messages[i].value("role", Json()) == "assistant" && clear_reasoning(without.messages[i]) &&
        !first)
      first = i;
  if (!first || !first_mention("lost reasoning of " + chat_template.name())) return;
  if (chat_template.render(without).text == chat_template.render(chat).text)
    log_warning(chat_template.name(), ": the template never writes reasoning, and rows have some, first row ",
                quote(id), ", messages[", *first, "]: the model does not see this reasoning");
}

/// Every token is a target where only {% generation %} blocks could say otherwise.
ChatTokens all_targets(const Chat& chat, const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  ChatTokens tokens;
  tokens.ids = tokenizer.encode(chat_template.render(chat).text, false);
  tokens.assistant.assign(tokens.ids.size(), true);
  return tokens;
}

ChatTokens marked_tokens(const Chat& chat, const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                         const ChatRowOptions& options) {
  const bool blocks = chat_template.has_generation_blocks();
  if (!options.answer_only && !blocks) return all_targets(chat, chat_template, tokenizer);
  ChosenTurns turns;
  turns.last_run = options.mask_history && (options.mask_order == MaskOrder::history_first || !blocks);
  if (!std::ranges::all_of(chat.messages, is_trained))
    turns.wanted = [&](std::size_t message) { return is_trained(chat.messages[message]); };
  return chat_tokens(chat_template, tokenizer, chat, turns);
}

void unmark_prompts(ChatTokens& tokens, const Chat& chat, const ChatTemplate& chat_template,
                    const Tokenizer& tokenizer) {
  if (unmark_generation_prompts(tokens, chat_template, tokenizer, chat))
    warn_once(
        "generation prompts of " + chat_template.name(), chat_template.name(),
        ": mask_generation_prompt: what the template writes in front of an answer stays a target where the "
        "answer is the first message, and where the messages before it are written in another way once it "
        "follows");
}

}  // namespace

TokenRow chat_row(const std::string& id, const Chat& chat, const ChatTemplate& chat_template,
                  const Tokenizer& tokenizer, const ChatRowOptions& options) {
  try {
    warn_of_lost_reasoning(id, chat, chat_template);
    ChatTokens tokens = marked_tokens(chat, chat_template, tokenizer, options);
    if (options.mask_generation_prompt) unmark_prompts(tokens, chat, chat_template, tokenizer);
    if (options.mask_reasoning_content) unmark_reasoning(tokens, chat, chat_template, tokenizer);
    if (options.mask_history && options.mask_order == MaskOrder::reasoning_first)
      keep_last_run(tokens.assistant);
    TokenRow row;
    row.id = id;
    for (std::size_t i = 0; i < tokens.ids.size(); ++i) row.append(tokens.ids[i], tokens.assistant[i]);
    return row;
  } catch (const Error& error) {
    fail("row ", quote(id), ": ", error.what());
  }
}

}  // namespace nemocube
