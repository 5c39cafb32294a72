#include "train/recipe/differences.h"

#include <algorithm>

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

// The older recipe with the present defaults filled in. A recipe that can no longer be read is left
// unchanged.
std::string with_defaults(const std::string& yaml) {
  try {
    return describe(parse_recipe(yaml, "older recipe", {}, RecipeUse::data));
  } catch (const Error&) {
    return yaml;
  }
}

const Value* entry_of(const Value* section, const std::string& key) {
  return section == nullptr ? nullptr : section->find(key);
}

bool is_section(const Value* value) {
  return value != nullptr && value->kind == Value::Kind::map && !value->entries.empty();
}

// The differences below the key `path`. `known`: the older recipe with_defaults().
void compare(const Value* written, const Value* known, const Value* now, const std::string& path,
             std::vector<KeyDifference>& differences) {
  const Value* old = written != nullptr || now == nullptr ? written : known;
  if (is_section(old) && is_section(now)) {
    const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
    for (const auto& [key, value] : now->entries)
      compare(entry_of(written, key), entry_of(known, key), &value, below(key), differences);
    for (const auto& [key, value] : old->entries)
      if (now->find(key) == nullptr)
        compare(entry_of(written, key), nullptr, nullptr, below(key), differences);
    return;
  }
  const std::string before = old == nullptr ? "" : text_of(*old), after = now == nullptr ? "" : text_of(*now);
  if (before != after) differences.push_back({path, before, after});
}

}  // namespace

std::vector<KeyDifference> recipe_differences(const std::string& before, const std::string& now) {
  const Value written = recipe::parse_yaml(before, "older recipe");
  const Value known = recipe::parse_yaml(with_defaults(before), "older recipe");
  const Value present = recipe::parse_yaml(now, "recipe");
  std::vector<KeyDifference> differences;
  compare(&written, &known, &present, "", differences);
  std::ranges::sort(differences, {}, &KeyDifference::key);
  return differences;
}

}  // namespace nemocube
