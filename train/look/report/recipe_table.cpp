#include "train/look/report/recipe_table.h"

#include <algorithm>
#include <map>

#include "train/recipe/value.h"

namespace nemocube::run_report {
namespace {

using recipe::Value;

std::string one_line(const Value& value) {
  if (value.kind == Value::Kind::null) return "null";
  if (value.kind == Value::Kind::scalar) return value.quoted ? "'" + value.text + "'" : value.text;
  std::string items;
  for (const Value& item : value.items) items += (items.empty() ? "" : ", ") + one_line(item);
  for (const auto& [key, entry] : value.entries)
    items += (items.empty() ? "" : ", ") + key + ": " + one_line(entry);
  return value.kind == Value::Kind::list ? "[" + items + "]" : "{" + items + "}";
}

void flatten(const Value& value, const std::string& path,
             std::vector<std::pair<std::string, std::string>>& keys) {
  if (value.kind != Value::Kind::map || (value.entries.empty() && !path.empty())) {
    keys.emplace_back(path, one_line(value));
    return;
  }
  for (const auto& [key, entry] : value.entries) flatten(entry, path.empty() ? key : path + "." + key, keys);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> flattened(const std::string& yaml) {
  std::vector<std::pair<std::string, std::string>> keys;
  flatten(recipe::parse_yaml(yaml, "recipe"), "", keys);
  return keys;
}

std::vector<KeyOfRecipes> differing_keys(const std::vector<std::string>& recipes) {
  std::map<std::string, std::vector<std::string>> values;
  for (std::size_t i = 0; i < recipes.size(); ++i)
    for (auto& [key, value] : flattened(recipes[i])) {
      auto& row = values[key];
      row.resize(recipes.size());
      row[i] = std::move(value);
    }
  std::vector<KeyOfRecipes> differing;
  for (auto& [key, row] : values)
    if (std::ranges::adjacent_find(row, std::not_equal_to{}) != row.end()) differing.push_back({key, row});
  return differing;
}

}  // namespace nemocube::run_report
