#include "data/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/chat/chat.h"
#include "data/chat/jinja/template.h"
#include "data/chat/jinja/text.h"
#include "data/chat/json_values.h"

namespace nemocube {

namespace {

/// The names under which reasoning may be given. Templates find it under the first two.
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

/// Whether a template has `.name`, 'name' or "name".
bool has_key(std::string_view source, std::string_view name) {
  for (std::size_t at = source.find(name); at != source.npos; at = source.find(name, at + 1)) {
    const char before = at > 0 ? source[at - 1] : ' ';
    const std::size_t end = at + name.size();
    const char after = end < source.size() ? source[end] : ' ';
    const bool word_goes_on = std::isalnum(static_cast<unsigned char>(after)) != 0 || after == '_';
    if (before == '.' ? !word_goes_on : (before == '\'' || before == '"') && after == before) return true;
  }
  return false;
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
  limits.memory = limits.shared_memory = std::numeric_limits<std::size_t>::max();
  limits.text_bytes = limits.items = std::numeric_limits<std::size_t>::max() / 2;
  return limits;
}

/// Ranges of code points as ranges of bytes. Each range begins where the one before begins, or behind.
std::vector<RenderedChat::Range> byte_ranges(const jinja::Output& output) {
  std::vector<RenderedChat::Range> ranges;
  std::string_view rest = output.text;
  std::size_t rest_begin = 0;  // the code point with which `rest` begins
  for (const auto& [begin, end] : output.generation) {
    rest.remove_prefix(jinja::byte_at(rest, begin - rest_begin));
    rest_begin = begin;
    const std::size_t byte = output.text.size() - rest.size();
    ranges.push_back({byte, byte + jinja::byte_at(rest, end - begin)});
  }
  return ranges;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string name, std::string_view source, SpecialTokens special_tokens)
    : name_(std::move(name)),
      template_(std::make_shared<const jinja::Template>(name_, source)),
      special_tokens_(std::move(special_tokens)),
      names_reasoning_(std::ranges::any_of(
          reasoning_names, [&](const char* reasoning) { return has_key(source, reasoning); })) {}

void ChatTemplate::set_variables(const Json& variables) {
  require(variables.is_object(), name_, ": variables: want an object, got ", brief(variables));
  variables_ = std::make_shared<const Json>(variables);
}

bool ChatTemplate::has_generation_blocks() const { return template_->has_generation(); }

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
  const auto add_variables = [&](const Json& variables) {
    for (const auto& [name, value] : variables.items()) {
      for (const char* known : chat_members)
        require(name != known, name_, ": variables: want names other than ", known,
                ", which has a key of its own");
      add(name, value);
    }
  };
  if (variables_) add_variables(*variables_);
  add_variables(chat.variables);
  add("messages", messages);
  add("tools", chat.tools ? *chat.tools : Json());
  add("documents", chat.documents ? *chat.documents : Json());
  context["add_generation_prompt"] = jinja::Value(chat.add_generation_prompt);
  jinja::Output output = template_->render(std::move(context), limits_, time_ ? *time_ : Moment::now());
  RenderedChat rendered{"", byte_ranges(output)};
  rendered.text = std::move(output.text);
  return rendered;
}

}  // namespace nemocube
