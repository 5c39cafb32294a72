#include "train/commands/overrides.h"

#include <cctype>

namespace nemocube {
namespace {

/// The index of the subcommand; options of the program itself may come first.
std::size_t subcommand_of(const std::vector<std::string>& arguments) {
  std::size_t at = 0;
  while (at < arguments.size() && arguments[at].starts_with('-'))
    at += arguments[at] == "--log-level" ? 2 : 1;
  return at;
}

bool is_override(const std::string& argument) {
  if (!argument.starts_with("--") || argument.size() == 2 ||
      !std::isalpha(static_cast<unsigned char>(argument[2])))
    return false;
  const std::string key = argument.substr(2, argument.find('=') - 2);
  return key == "seed" || key.find('.') != std::string::npos;
}

}  // namespace

std::vector<std::string> spell_out_overrides(const std::vector<std::string>& arguments) {
  const std::size_t subcommand = subcommand_of(arguments);
  if (subcommand >= arguments.size()) return arguments;
  const std::string& name = arguments[subcommand];
  if (name != "train" && name != "eval" && name != "inspect") return arguments;
  std::vector<std::string> out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!is_override(argument)) {
      out.push_back(argument);
      continue;
    }
    std::string assignment = argument.substr(2);
    const bool value_follows = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
    if (assignment.find('=') == std::string::npos)
      assignment += "=" + (value_follows ? arguments[++i] : std::string("true"));
    out.insert(out.end(), {"--set", assignment});
  }
  return out;
}

}  // namespace nemocube
