#include "data/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/utf8.h"
#include "data/chat/json_values.h"

namespace nemocube {

namespace {

/// The names under which reasoning is given; templates read the first.
constexpr std::array<const char*, 3> reasoning_names{"reasoning_content", "thinking", "reasoning"};

const Json* reasoning_of(const Json& message) {
  for (const char* name : reasoning_names)
    if (const auto found = message.find(name); found != message.end() && !found->is_null()) return &*found;
  return nullptr;
}

Json as_template_sees(const Json& message) {
  const Json* reasoning = reasoning_of(message);
  Json seen = Json::object();
  if (reasoning) seen["thinking"] = *reasoning;
  for (const auto& [key, value] : message.items())
    if (!value.is_null()) seen[key] = value;
  if (reasoning) seen["reasoning_content"] = *reasoning;
  return seen;
}

void check_list_of_objects(const std::string& name, const char* what, const Json& list) {
  require(list.is_array(), name, ": ", what, ": want a list of objects, got ", brief(list));
  for (std::size_t i = 0; i < list.size(); ++i)
    require(list[i].is_object(), name, ": ", what, "[", i, "]: want an object, got ", brief(list[i]));
}

/// Values that come from the caller do not count as the template's work.
jinja::Limits limits_of_input() {
  jinja::Limits limits;
  limits.steps = std::numeric_limits<std::uint64_t>::max() / 2;
  limits.text_bytes = limits.items = std::numeric_limits<std::size_t>::max() / 2;
  return limits;
}

/// Bytes at which code points begin, for ascending and other positions; the end of the text behind it.
std::size_t byte_of(std::string_view text, std::size_t code_point) {
  std::size_t byte = 0;
  for (; code_point > 0 && byte < text.size(); --code_point) byte += utf8_step(text, byte).length;
  return byte;
}

std::vector<RenderedChat::Range> byte_ranges(const jinja::Output& output) {
  std::vector<RenderedChat::Range> ranges;
  std::size_t at = 0, byte = 0;  // positions of blocks never go back
  for (const auto& [begin, end] : output.generation) {
    const std::string_view rest = std::string_view(output.text).substr(byte);
    byte += byte_of(rest, begin - at);
    at = begin;
    const std::size_t size = byte_of(std::string_view(output.text).substr(byte), end - begin);
    ranges.push_back({byte, byte + size});
  }
  return ranges;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string name, std::string_view source, SpecialTokens special_tokens)
    : name_(std::move(name)), template_(name_, source), special_tokens_(std::move(special_tokens)) {}

RenderedChat ChatTemplate::render(const Chat& chat) const {
  check_list_of_objects(name_, "messages", chat.messages);
  require(!chat.messages.empty(), name_, ": messages: want at least one message, got none");
  if (chat.tools) check_list_of_objects(name_, "tools", *chat.tools);
  if (chat.documents) check_list_of_objects(name_, "documents", *chat.documents);
  require(chat.variables.is_object(), name_, ": variables: want an object, got ", brief(chat.variables));

  Json messages = Json::array();
  for (const Json& message : chat.messages) messages.push_back(as_template_sees(message));
  jinja::Interpreter::Context context;
  jinja::Budget budget(limits_of_input());
  const auto add = [&](const std::string& name, const Json& value) {
    context[name] = jinja::value_of_json(value, name_ + ": " + name, budget);
  };
  for (const auto& [name, token] : special_tokens_) context[name] = jinja::Value(token);
  for (const auto& [name, value] : chat.variables.items()) {
    for (const char* known : {"messages", "tools", "documents", "add_generation_prompt"})
      require(name != known, name_, ": variables: want names other than ", known,
              ", which has a key of its own");
    add(name, value);
  }
  add("messages", messages);
  add("tools", chat.tools ? *chat.tools : Json());
  add("documents", chat.documents ? *chat.documents : Json());
  context["add_generation_prompt"] = jinja::Value(chat.add_generation_prompt);
  jinja::Output output =
      template_.render(std::move(context), limits_, time_.value_or(std::chrono::system_clock::now()));
  RenderedChat rendered{"", byte_ranges(output)};
  rendered.text = std::move(output.text);
  return rendered;
}

}  // namespace nemocube
