#include "train/commands/chat_variables.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/quote.h"
#include "core/utf8.h"
#include "data/chat/chat.h"
#include "data/chat/chat_template.h"
#include "train/recipe/environment.h"

namespace nemocube {

void check_utf8(const std::string& what, std::string_view text) {
  const auto bad = first_invalid_utf8(text);
  require(!bad, what, ": not valid UTF-8 at byte ", bad.value_or(0) + 1);
}

Moment moment_of_option(const std::string& now) {
  if (now.empty()) return Moment::now();
  try {
    return parse_moment(now);
  } catch (const Error& error) {
    fail("--now: ", error.what());
  }
}

void set_variable(Json& variables, const std::string& option) {
  const std::size_t equals = option.find('=');
  require(equals != std::string::npos && equals > 0, "--set: want NAME=VALUE, got ", quote(option));
  const std::string name = option.substr(0, equals), text = option.substr(equals + 1);
  check_utf8("--set", option);
  require(recipe::is_variable_name(name),
          "--set: want the name of a variable, of letters, digits and _, got ", quote(name));
  require(std::ranges::find(chat_members, std::string_view(name)) == chat_members.end(), "--set: ", name,
          " comes from the conversation; want another name");
  variables[name] = Json::accept(text) ? parse_json(text, "--set " + name) : Json(text);
}

}  // namespace nemocube
