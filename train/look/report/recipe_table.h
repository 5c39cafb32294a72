#pragma once
#include <string>
#include <utility>
#include <vector>

namespace nemocube::run_report {

/// The keys of a recipe in YAML with their values, "optimizer.lr" and "0.001", in the order of the file. A
/// list and an empty section are one value. Throws Error when the text is no YAML.
std::vector<std::pair<std::string, std::string>> flattened(const std::string& yaml);

struct KeyOfRecipes {
  std::string key;
  std::vector<std::string> values;  ///< of each recipe; "" where a recipe lacks the key
};
/// The keys whose values are not the same in all recipes, sorted.
std::vector<KeyOfRecipes> differing_keys(const std::vector<std::string>& recipes);

}  // namespace nemocube::run_report
