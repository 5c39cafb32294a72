#include "data/datasets/messages.h"

#include <nlohmann/json.hpp>

#include "data/datasets/completion.h"
#include "data/datasets/json_rows.h"
#include "data/datasets/row_forms.h"
#include "data/datasets/text.h"

namespace nemocube {

namespace {

Role read_role(const JsonView& role) {
  const std::string& name = role.string();
  if (name == "system") return Role::system;
  if (name == "user" || name == "human") return Role::user;
  if (name == "assistant" || name == "gpt" || name == "model" || name == "bot" || name == "chatgpt")
    return Role::assistant;
  if (name != "tool") role.refuse("system, user, assistant or tool");
  return Role::tool;
}

Turn read_turn(const JsonView& turn, const std::string& role, const std::string& content) {
  if (const auto calls = turn.find("tool_calls"))
    calls->refuse("none, since conversations without a chat template cannot hold them");
  for (const std::string& key : {role, content})
    require(turn.has(key) || turn.has_null(key), turn.file(), ": '", turn.place(),
            "': want a turn with the keys ", role, " and ", content, ", got one with the keys ",
            list_keys(turn.value()));
  return {read_role(turn.at(role)), std::string(strip(content_text(turn, content)))};
}

Conversation read_conversation(const JsonView& row, std::int64_t number) {
  Conversation conversation;
  if (!row.value().is_object() || !(row.has("messages") || row.has("conversations")))
    refuse_row(row, "messages", messages_form);
  conversation.id = row_id(row, cat("row ", number));
  const bool shared = !row.has("messages") && row.has("conversations");
  for (const JsonView& turn : row.at(shared ? "conversations" : "messages").elements())
    conversation.turns.push_back(shared ? read_turn(turn, "from", "value")
                                        : read_turn(turn, "role", "content"));
  return conversation;
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

std::vector<Conversation> read_conversations(const std::filesystem::path& path, bool skip_invalid) {
  std::vector<Conversation> out;
  for_each_valid_row(path, "conversations", skip_invalid, [&](const JsonView& row, std::int64_t number) {
    out.push_back(read_conversation(row, number));
  });
  return out;
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
    const bool target = i == last || !options.chat.mask_history;
    add_text(target ? content_begin : std::string::npos);
    if (!options.rows.append_eos) continue;
    const std::int64_t eos = eos_to_append("conversation data set", tokenizer, options.rows);
    if (row.ids.empty() || row.ids.back() != eos) row.append(eos, target);
  }
  if (!suffix.empty() && (row.ids.empty() || row.ids.back() != suffix.back()))
    for (const std::int64_t id : suffix) row.append(id, last < turns.size());
  return row;
}

namespace {

std::vector<TokenRow> plain_rows(std::string_view what, const Tokenizer& tokenizer,
                                 const MessagesOptions& options) {
  const auto conversations = read_conversations(options.path, options.skip_invalid_samples);
  const auto chosen = selected_rows(what, options.selection, std::ssize(conversations));
  return make_rows(std::ssize(chosen), [&](std::int64_t i) {
    const auto row = static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)]);
    return conversation_row(conversations[row], tokenizer, options);
  });
}

std::vector<TokenRow> templated_rows(std::string_view what, const Tokenizer& tokenizer,
                                     const MessagesOptions& options) {
  struct Talk {
    std::string id, place;
    Chat chat;
  };
  std::vector<Talk> talks;
  for_each_valid_row(options.path, "conversations", options.skip_invalid_samples,
                     [&](const JsonView& row, std::int64_t number) {
                       talks.push_back({row_id(row, cat("row ", number)), row.place(),
                                        read_chat_row(row, options.tool_arguments)});
                     });
  const auto chosen = selected_rows(what, options.selection, std::ssize(talks));
  return make_rows(std::ssize(chosen), [&](std::int64_t i) {
    const Talk& talk = talks[static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)])];
    return row_at(options.path, talk.place, [&] {
      return chat_row(talk.id, talk.chat, options.chat_templates->of(talk.chat), tokenizer, options.chat);
    });
  });
}

}  // namespace

std::shared_ptr<const RowDataset> make_messages_dataset(const Tokenizer& tokenizer,
                                                        const MessagesOptions& options) {
  const std::string what = "conversation data set " + options.path;
  require(options.rows.truncation != Truncation::context, what,
          ": truncation 'context' is for question answering; want left or right");
  std::vector<TokenRow> rows = options.chat_templates ? templated_rows(what, tokenizer, options)
                                                      : plain_rows(what, tokenizer, options);
  return std::make_shared<RowDataset>(what, std::move(rows), options.rows,
                                      padding_id(tokenizer, options.rows));
}

}  // namespace nemocube
