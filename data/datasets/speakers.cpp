#include "data/datasets/speakers.h"

namespace nemocube {

const std::map<std::string, std::string, std::less<>>& speakers() {
  static const std::map<std::string, std::string, std::less<>> roles{
      {"system", "system"},       {"human", "user"},          {"user", "user"},
      {"gpt", "assistant"},       {"assistant", "assistant"}, {"chatgpt", "assistant"},
      {"model", "assistant"},     {"bot", "assistant"},       {"function_call", "tool_call"},
      {"tool_call", "tool_call"}, {"observation", "tool"},    {"tool_response", "tool"},
      {"tool", "tool"},
  };
  return roles;
}

std::string speaker_names() {
  std::string names;
  std::size_t left = speakers().size();
  for (const auto& [name, role] : speakers())
    names += (names.empty() ? "" : --left == 1 ? " or " : ", ") + name;
  return names;
}

}  // namespace nemocube
