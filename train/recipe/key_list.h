#pragma once
#include <string>
#include <vector>

/// The keys of recipes as a list, made by the visitor of fields.h that documents.
namespace nemocube::recipe {

/// Paths of all keys, with and without effect, each section before its keys.
const std::vector<std::string>& known_paths();
/// The table of docs/recipe.md in Markdown: key, type, default, meaning, effect.
std::string key_table();

}  // namespace nemocube::recipe
