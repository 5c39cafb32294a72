#include "train/recipe/differences.h"

#include <algorithm>
#include <map>

#include "train/recipe/recipe.h"
#include "train/recipe/value.h"

namespace nemocube {
namespace {

using recipe::Value;

std::string text_of(const Value& value) {
  if (value.kind == Value::Kind::null) return "null";
  if (value.kind == Value::Kind::scalar) return value.text;
  std::string items;
  for (const Value& item : value.items) items += (items.empty() ? "" : ", ") + text_of(item);
  for (const auto& [key, entry] : value.entries)
    items += (items.empty() ? "" : ", ") + key + ": " + text_of(entry);
  return value.kind == Value::Kind::list ? "[" + items + "]" : "{" + items + "}";
}

void flatten(const Value& value, const std::string& key, std::map<std::string, std::string>& values) {
  if (value.kind != Value::Kind::map || value.entries.empty()) {
    values[key] = text_of(value);
    return;
  }
  for (const auto& [name, entry] : value.entries)
    flatten(entry, key.empty() ? name : key + "." + name, values);
}

std::map<std::string, std::string> values_of(const std::string& yaml, const char* name) {
  std::map<std::string, std::string> values;
  flatten(recipe::parse_yaml(yaml, name), "", values);
  return values;
}

// The older recipe with the present defaults filled in. A recipe that can no longer be read is left
// unchanged.
std::string with_defaults(const std::string& yaml) {
  try {
    return describe(parse_recipe(yaml, "older recipe", {}, RecipeUse::data));
  } catch (const Error&) {
    return yaml;
  }
}

}  // namespace

std::vector<KeyDifference> recipe_differences(const std::string& before, const std::string& now) {
  const auto written = values_of(before, "older recipe"), present = values_of(now, "recipe");
  const auto known = values_of(with_defaults(before), "older recipe");
  std::vector<KeyDifference> differences;
  const auto value = [](const auto& values, const std::string& key) {
    const auto found = values.find(key);
    return found == values.end() ? std::string() : found->second;
  };
  for (const auto& [key, text] : present) {
    const std::string old = written.contains(key) ? value(written, key) : value(known, key);
    if (old != text) differences.push_back({key, old, text});
  }
  for (const auto& [key, text] : written)
    if (!present.contains(key)) differences.push_back({key, text, ""});
  std::ranges::sort(differences, {}, &KeyDifference::key);
  return differences;
}

}  // namespace nemocube
