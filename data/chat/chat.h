#pragma once
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/json/json.h"

/// The input of chat templates. The header is separate, so that files that only pass conversations on name
/// `struct Chat;` and need not compile nlohmann-json.
namespace nemocube {

/// The variables of templates that a Chat has members for.
inline constexpr std::array<const char*, 4> chat_members{"messages", "tools", "documents",
                                                         "add_generation_prompt"};

/// A conversation with all that its template may read.
struct Chat {
  Json messages = Json::array();    ///< objects with `role`, `content` and whatever else the template reads
  std::optional<Json> tools{};      ///< a list of JSON schemas
  std::optional<Json> documents{};  ///< a list of objects
  bool add_generation_prompt = false;  ///< ends the text where the assistant begins its answer
  Json variables = Json::object();     ///< further variables, such as enable_thinking
};

}  // namespace nemocube
