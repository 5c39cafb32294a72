#include "data/datasets/chat_messages.h"

#include <nlohmann/json.hpp>

#include "data/chat/chat.h"
#include "data/chat/chat_file.h"
#include "data/chat/jinja/printing.h"
#include "data/chat/json_values.h"
#include "data/datasets/row_forms.h"
#include "data/datasets/speakers.h"
#include "data/datasets/turn_weight.h"

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

std::optional<Json> read_tools(const JsonView& row) {
  const auto given = row.find("tools");
  std::optional<Json> tools = given ? read_json_list(*given) : std::nullopt;
  return tools && tools->empty() ? std::nullopt : tools;
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

/// `content`: the key of the content. `out`: the message but for its role and content.
Json read_message(const JsonView& message, const std::string& role, const std::string& content, Json out,
                  ToolArguments arguments) {
  check_turn_weight(message, role == "assistant");
  out["role"] = role;
  out["content"] = message.value().contains(content) ? content_text(message, content) : "";
  if (role != "assistant") return out;
  if (message.has("reasoning_content") || message.has_null("reasoning_content"))
    out["reasoning_content"] = text_or(message, "reasoning_content", "");
  if (const auto calls = message.find("tool_calls")) {
    Json list = Json::array();
    for (const JsonView& call : calls->elements())
      list.push_back(read_tool_call(call, list.size(), arguments));
    out["tool_calls"] = std::move(list);
  }
  return out;
}

Json read_openai_message(const JsonView& message, ToolArguments arguments) {
  const JsonView role = message.at("role");
  const std::string name(role.string());
  if (name != "system" && name != "user" && name != "assistant" && name != "tool")
    role.refuse("system, user, assistant or tool");
  if (name == "tool" && message.at("tool_call_id").string().empty())
    message.at("tool_call_id").refuse("the id of a tool call");
  return read_message(message, name, "content", message.value(), arguments);
}

/// The messages of `conversations`. Calls of tools are turns of their own there, and their results name no
/// call.
class ShareGptReader {
 public:
  explicit ShareGptReader(ToolArguments arguments) : arguments_(arguments) {}

  void add(const JsonView& turn) {
    const std::string role = role_of_speaker(turn);
    const bool continues = role == role_;
    role_ = role;
    if (role == "tool_call") return add_calls(turn, continues);
    const std::string content = content_key(turn);
    Json other = turn.value();
    for (const char* key : {"from", "value", "role", "content"}) other.erase(key);
    Json message{{"role", role}, {"content", ""}};
    message.update(other);
    if (role == "tool") {
      if (!continues) results_ = 0;
      if (!turn.has("tool_call_id")) message["tool_call_id"] = id_of_result();
      ++results_;
    } else {
      calls_.clear();
    }
    messages_.push_back(read_message(turn, role, content, std::move(message), arguments_));
  }
  Json messages() && { return std::move(messages_); }

 private:
  /// The calls join those of the turn before, or the assistant's text in front of them.
  void add_calls(const JsonView& turn, bool continues) {
    const bool answers = !messages_.empty() && messages_.back()["role"] == "assistant";
    const bool joins = continues || (answers && !messages_.back().contains("tool_calls"));
    if (!joins) messages_.push_back({{"role", "assistant"}, {"content", ""}});
    Json& message = messages_.back();
    check_turn_weight(turn, true);
    if (!is_trained(turn.value()) && is_trained(message)) {
      if (joins) turn.refuse("a call that is a target, as the turn that it continues");
      message["weight"] = 0;
    }
    if (!continues) {
      calls_.clear();
      message["tool_calls"] = Json::array();
    }
    const JsonView value = turn.at(content_key(turn));
    const std::string place = cat(value.file(), ": '", value.place(), "'");
    const Json given = value.value().is_string() ? parse_json(value.string(), place) : value.value();
    const JsonView view(given, value.file(), value.place());
    for (const JsonView& call : given.is_array() ? view.elements() : std::vector{view}) {
      Json made;
      made["function"]["name"] = std::string(call.at("name").string());
      if (const auto arguments = call.find("arguments")) made["function"]["arguments"] = arguments->value();
      calls_.push_back(cat("call_", all_calls_));
      message["tool_calls"].push_back(
          read_tool_call(JsonView(made, call.file(), call.place()), all_calls_++, arguments_));
    }
  }

  std::string id_of_result() const {
    return results_ < calls_.size() ? calls_[results_] : cat("result_", all_calls_ + results_);
  }

  static std::string content_key(const JsonView& turn) {
    const bool unnamed = !turn.value().contains("value") && turn.value().contains("content");
    if (!unnamed && !turn.value().contains("value")) turn.at("value");  // an Error
    return unnamed ? "content" : "value";
  }

  static std::string role_of_speaker(const JsonView& turn) {
    const JsonView from = turn.at(turn.has("from") ? "from" : "role");
    const auto found = speakers().find(from.string());
    if (found == speakers().end()) from.refuse(speaker_names());
    return found->second;
  }

  ToolArguments arguments_;
  Json messages_ = Json::array();
  std::string role_;                ///< of the turn before
  std::vector<std::string> calls_;  ///< ids of the last calls
  std::size_t all_calls_ = 0, results_ = 0;
};

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
  want_conversation(row);
  Chat chat;
  if (row.has("messages")) {
    for (const JsonView& message : row.at("messages").elements())
      chat.messages.push_back(read_openai_message(message, arguments));
  } else {
    ShareGptReader reader(arguments);
    for (const JsonView& turn : row.at("conversations").elements()) reader.add(turn);
    chat.messages = std::move(reader).messages();
  }
  if (chat.messages.empty())
    row.at(row.has("messages") ? "messages" : "conversations").refuse("a message or more");
  chat.tools = read_tools(row);
  read_template_kwargs(row, chat);
  return chat;
}

}  // namespace nemocube
