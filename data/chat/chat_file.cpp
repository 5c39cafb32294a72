#include "data/chat/chat_file.h"

#include "data/datasets/json_rows.h"

namespace nemocube {

std::optional<Json> read_json_list(const JsonView& list) {
  if (list.value().is_string() && list.string().empty()) return std::nullopt;
  Json value = list.value().is_string()
                   ? parse_json(list.string(), cat(list.file(), ": '", list.place(), "'"))
                   : list.value();
  if (value.is_null()) return std::nullopt;
  if (!value.is_array()) list.refuse("a list, or the JSON text of one");
  return value;
}

void read_template_kwargs(const JsonView& row, Chat& chat) {
  const auto variables = row.find("chat_template_kwargs");
  if (!variables) return;
  if (!variables->value().is_object()) variables->refuse("an object");
  chat.variables = variables->value();
}

namespace {

Chat read_chat(const JsonView& row) {
  Chat chat;
  if (row.value().is_array()) {
    chat.messages = row.value();
    return chat;
  }
  if (!row.value().is_object() || !row.has("messages"))
    row.refuse("a conversation: a list of messages, or an object with the key messages");
  const JsonView messages = row.at("messages");
  chat.messages = read_json_list(messages).value_or(Json());
  if (chat.messages.is_null()) messages.refuse("a list of messages, or the JSON text of one");
  if (const auto tools = row.find("tools")) chat.tools = read_json_list(*tools);
  if (const auto documents = row.find("documents")) chat.documents = read_json_list(*documents);
  if (const auto prompt = row.find("add_generation_prompt")) chat.add_generation_prompt = prompt->boolean();
  read_template_kwargs(row, chat);
  return chat;
}

}  // namespace

std::vector<NamedChat> read_chats(const std::filesystem::path& path) {
  std::vector<NamedChat> chats;
  bool messages_alone = false;
  for_each_row(path, [&](const JsonView& row) {
    const bool message = row.value().is_object() && row.has("role") && !row.has("messages");
    if (!chats.empty() && message != messages_alone)
      row.refuse(messages_alone ? "a message, as the rows before" : "a conversation, as the rows before");
    messages_alone = message;
    if (!message) {
      chats.push_back(
          {cat(path.string(), ": ", row.place().empty() ? "the document" : row.place()), read_chat(row)});
      return;
    }
    if (chats.empty()) chats.push_back({path.string(), {}});
    chats.front().chat.messages.push_back(row.value());
  });
  require(!chats.empty(), path.string(), ": holds no conversations");
  return chats;
}

}  // namespace nemocube
