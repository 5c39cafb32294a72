#include "train/commands/chat_variables.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/quote.h"

namespace nemocube {

void set_variable(Json& variables, const std::string& option) {
  const std::size_t equals = option.find('=');
  require(equals != std::string::npos && equals > 0, "--set: want NAME=VALUE, got ", quote(option));
  const std::string name = option.substr(0, equals), text = option.substr(equals + 1);
  variables[name] = Json::accept(text) ? parse_json(text, "--set " + name) : Json(text);
}

}  // namespace nemocube
