#include "data/datasets/messages.h"

#include <nlohmann/json.hpp>

#include "core/warn_once.h"
#include "data/chat/chat.h"
#include "data/datasets/completion.h"
#include "data/datasets/json_rows.h"
#include "data/datasets/row_forms.h"
#include "data/datasets/speakers.h"
#include "data/datasets/text.h"
#include "data/datasets/turn_weight.h"

namespace nemocube {

namespace {

Role read_role(const JsonView& role) {
  const auto found = speakers().find(role.string());
  const std::string name = found == speakers().end() ? "" : found->second;
  if (name == "system") return Role::system;
  if (name == "user") return Role::user;
  if (name == "assistant") return Role::assistant;
  if (name == "tool_call") role.refuse("a role other than that, since calls need a chat template");
  if (name != "tool") role.refuse("system, user, assistant or tool");
  return Role::tool;
}

void warn_of_reasoning(const JsonView& turn) {
  for (const char* key : {"reasoning_content", "thinking", "reasoning"})
    if (const auto reasoning = turn.find(key); reasoning && reasoning->value() != "")
      warn_once(
          cat(turn.file(), " has reasoning"), turn.file(), ": '", reasoning->place(),
          "' is left out, here and in other turns, since conversations without a chat template cannot hold "
          "reasoning");
}

Turn read_turn(const JsonView& turn, const std::string& role, const std::string& content) {
  if (const auto calls = turn.find("tool_calls"))
    calls->refuse("none, since conversations without a chat template cannot hold them");
  for (const std::string& key : {role, content})
    require(turn.has(key) || turn.has_null(key), turn.file(), ": '", turn.place(),
            "': want a turn with the keys ", role, " and ", content, ", got one with the keys ",
            list_keys(turn.value()));
  const Role speaker = read_role(turn.at(role));
  check_turn_weight(turn, speaker == Role::assistant);
  warn_of_reasoning(turn);
  return {speaker, std::string(strip(content_text(turn, content))), is_trained(turn.value())};
}

std::string_view mark_of(Role role) {
  switch (role) {
    case Role::system:
      return "System: ";
    case Role::user:
      return "User: ";
    case Role::assistant:
      return "Assistant: ";
    default:
      return "Tool: ";
  }
}

}  // namespace

Conversation read_conversation(const JsonView& row, std::int64_t number) {
  Conversation conversation;
  want_conversation(row);
  conversation.id = row_id(row, cat("row ", number));
  const bool shared = !row.has("messages") && row.has("conversations");
  for (const JsonView& turn : row.at(shared ? "conversations" : "messages").elements())
    conversation.turns.push_back(shared ? read_turn(turn, "from", "value")
                                        : read_turn(turn, "role", "content"));
  return conversation;
}

TokenRow conversation_row(const Conversation& conversation, const Tokenizer& tokenizer,
                          const MessagesOptions& options) {
  TokenRow row;
  row.id = conversation.id;
  const auto& turns = conversation.turns;
  std::size_t last = turns.size();  // the last turn of the assistant
  for (std::size_t i = 0; i < turns.size(); ++i)
    if (turns[i].role == Role::assistant) last = i;

  const auto& prefix = tokenizer.special_prefix();
  const auto& suffix = tokenizer.special_suffix();
  for (const std::int64_t id : prefix) row.append(id, false);
  row.leading = row.size();

  // Text up to the end of an assistant's turn is tokenised as one string; EOS follows it as an id.
  std::string text;
  const auto add_text = [&](std::size_t target_begin) {
    for (const TokenSpan& token : tokenizer.encode_with_offsets(text, false))
      row.append(token.id, token.end > target_begin);
    text.clear();
  };
  for (std::size_t i = 0; i <= last && last < turns.size(); ++i) {
    if (i > 0) text += '\n';
    text += mark_of(turns[i].role);
    const std::size_t content_begin = text.size();
    text += turns[i].content;
    if (turns[i].role != Role::assistant) continue;
    const bool target = turns[i].trained && (i == last || !options.chat.mask_history);
    add_text(target ? content_begin : std::string::npos);
    if (!options.rows.append_eos) continue;
    const std::int64_t eos = eos_to_append("conversation data set", tokenizer, options.rows);
    if (row.ids.empty() || row.ids.back() != eos) row.append(eos, target);
  }
  if (!suffix.empty() && (row.ids.empty() || row.ids.back() != suffix.back()))
    for (const std::int64_t id : suffix) row.append(id, last < turns.size() && turns[last].trained);
  return row;
}

RowSource messages_rows(const Tokenizer& tokenizer, const MessagesOptions& options) {
  RowSource source;
  source.what = "conversation data set " + names_of(options.files);
  require(options.rows.truncation != Truncation::context, source.what,
          ": truncation 'context' is for question answering; want left or right");
  source.files = options.files;
  source.content = "conversations";
  source.selection = options.selection;
  source.skip_invalid = options.skip_invalid_samples;
  source.layout = options.rows;
  source.pad_id = padding_id(tokenizer, options.rows);
  const auto shared = std::make_shared<const MessagesOptions>(options);
  if (!options.chat_templates) {
    source.read = [tokenizer, shared](const JsonView& row, std::int64_t number) -> RowMaker {
      return [tokenizer, shared, conversation = read_conversation(row, number)] {
        return conversation_row(conversation, tokenizer, *shared);
      };
    };
    return source;
  }
  source.read = [tokenizer, shared](const JsonView& row, std::int64_t number) -> RowMaker {
    return [tokenizer, shared, id = row_id(row, cat("row ", number)), file = row.file(), place = row.place(),
            chat = read_chat_row(row, shared->tool_arguments)] {
      return row_at(file, place, [&] {
        return chat_row(id, chat, shared->chat_templates->of(chat), tokenizer, shared->chat);
      });
    };
  };
  return source;
}

}  // namespace nemocube
