#include "train/recipe/value.h"

#include "core/error.h"
#include "core/quote.h"

namespace nemocube::recipe {

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

void check_key(std::string_view key, const std::string& where) {
  require(!key.empty() && excerpt(key) == key, where, ": want a key of 1 to 200 printable bytes, found ",
          quote(key));
}

}  // namespace nemocube::recipe
