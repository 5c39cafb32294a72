#include "data/datasets/chat_messages.h"

#include <nlohmann/json.hpp>

#include "data/chat/chat.h"
#include "data/chat/jinja/printing.h"
#include "data/chat/json_values.h"
#include "data/datasets/row_forms.h"

namespace nemocube {

namespace {

/// Python's json.dumps(value).
std::string python_json(const JsonView& view) {
  try {
    jinja::Budget budget({});
    const jinja::Value value = jinja::value_of_json(view.value(), view.place(), budget);
    return jinja::to_json(value, {.ascii = true}, budget);
  } catch (const jinja::Failure& failure) {
    fail(view.file(), ": '", view.place(), "': ", failure.what());
  }
}

/// A text that may be absent, null or empty; then it is `otherwise`.
std::string text_or(const JsonView& object, const std::string& key, const std::string& otherwise) {
  const auto found = object.find(key);
  return found && !found->string().empty() ? std::string(found->string()) : otherwise;
}

Json read_tool_call(const JsonView& call, std::size_t number, ToolArguments arguments) {
  const JsonView function = call.at("function");
  if (function.at("name").string().empty()) function.at("name").refuse("the name of a function");
  const auto given = function.find("arguments");
  Json out = call.value();
  out["id"] = text_or(call, "id", cat("call_", number));
  out["type"] = text_or(call, "type", "function");
  if (arguments == ToolArguments::text && given && !given->value().is_string())
    out["function"]["arguments"] = python_json(*given);
  return out;
}

Json read_message(const JsonView& message, ToolArguments arguments) {
  const JsonView role = message.at("role");
  const std::string_view name = role.string();
  if (name != "system" && name != "user" && name != "assistant" && name != "tool")
    role.refuse("system, user, assistant or tool");
  Json out = message.value();
  out["content"] = message.has("content") ? content_text(message, "content") : "";
  if (name == "assistant" && (message.has("reasoning_content") || message.has_null("reasoning_content")))
    out["reasoning_content"] = text_or(message, "reasoning_content", "");
  if (const auto calls = message.find("tool_calls"); calls && name == "assistant") {
    Json list = Json::array();
    for (const JsonView& call : calls->elements())
      list.push_back(read_tool_call(call, list.size(), arguments));
    out["tool_calls"] = std::move(list);
  }
  if (name == "tool" && message.at("tool_call_id").string().empty())
    message.at("tool_call_id").refuse("the id of a tool call");
  return out;
}

std::string role_of_speaker(const JsonView& from) {
  const std::string_view name = from.string();
  if (name == "system") return "system";
  if (name == "human" || name == "user") return "user";
  for (const char* assistant : {"gpt", "assistant", "chatgpt", "model", "bot"})
    if (name == assistant) return "assistant";
  from.refuse("system, human, user, gpt, assistant, chatgpt, model or bot");
}

Json read_turn(const JsonView& turn) {
  const JsonView from = turn.at(turn.has("from") ? "from" : "role");
  return {{"role", role_of_speaker(from)},
          {"content", content_text(turn, turn.value().contains("value") ? "value" : "content")}};
}

std::optional<Json> read_tools(const JsonView& row) {
  const auto given = row.find("tools");
  if (!given) return std::nullopt;
  Json tools = given->value().is_string()
                   ? parse_json(given->string(), cat(given->file(), ": '", given->place(), "'"))
                   : given->value();
  if (!tools.is_array()) given->refuse("a list of tools, or the JSON text of one");
  return tools.empty() ? std::nullopt : std::optional(std::move(tools));
}

}  // namespace

std::string content_text(const JsonView& turn, const std::string& key) {
  if (turn.has_null(key)) return "";
  const JsonView content = turn.at(key);
  if (!content.value().is_array()) return std::string(content.string());
  std::string joined;
  const char* space = "";
  for (const JsonView& part : content.elements()) {
    const bool bare = part.value().is_string();
    if (!bare)
      if (const auto type = part.find("type"); type && type->string() != "text") type->refuse("text");
    joined += cat(space, (bare ? part : part.at("text")).string());
    space = " ";
  }
  return joined;
}

Chat read_chat_row(const JsonView& row, ToolArguments arguments) {
  if (!row.value().is_object() || !(row.has("messages") || row.has("conversations")))
    refuse_row(row, "messages", messages_form);
  Chat chat;
  if (row.has("messages")) {
    for (const JsonView& message : row.at("messages").elements())
      chat.messages.push_back(read_message(message, arguments));
  } else {
    for (const JsonView& turn : row.at("conversations").elements()) chat.messages.push_back(read_turn(turn));
  }
  if (chat.messages.empty())
    row.at(row.has("messages") ? "messages" : "conversations").refuse("a message or more");
  chat.tools = read_tools(row);
  return chat;
}

}  // namespace nemocube
