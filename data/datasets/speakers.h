#pragma once
#include <map>
#include <string>
#include <string_view>

namespace nemocube {

/// The names of speakers in `conversations`, with their roles: system, user,
/// assistant, tool_call (a turn whose value is the JSON of one call or of a list
/// of calls) and tool (the result of a call).
const std::map<std::string, std::string, std::less<>>& speakers();
/// All names, for messages: "assistant, bot ... or user".
std::string speaker_names();

}  // namespace nemocube
