#pragma once
#include <string>
#include <vector>

/// All keys of recipes, for suggestions and for docs/recipe.md.
namespace nemocube::recipe {

struct KeyRow {
  std::string path, type, initial, meaning, effect;
};
/// Keys with and without effect; the sections in the order of fields.h, then those without any effect.
const std::vector<KeyRow>& key_rows();
const std::vector<std::string>& known_paths();
/// The table of docs/recipe.md in Markdown.
std::string key_table();

}  // namespace nemocube::recipe
