#pragma once
#include <string>

#include "data/chat/jinja/value.h"
#include "data/json/json.h"

namespace nemocube::jinja {

/// A JSON document as Python reads it. Throws Error "what: ..." beyond the depth that `budget` allows.
Value value_of_json(const Json& json, const std::string& what, Budget& budget);

}  // namespace nemocube::jinja
