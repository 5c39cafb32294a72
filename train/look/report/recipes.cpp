#include "core/error.h"
#include "train/look/report/figure.h"
#include "train/look/report/html.h"
#include "train/look/report/recipe_table.h"
#include "train/look/report/sections.h"

namespace nemocube::run_report {
namespace {

std::string difference_table(std::span<const RunData> runs, const std::vector<std::string>& names) {
  std::vector<std::string> recipes;
  Table table{{"key"}, {}, 1};
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (runs[i].recipe_text) {
      recipes.push_back(*runs[i].recipe_text);
      table.head.push_back(names[i]);
    }
  if (recipes.size() < 2) return absence_html("Differences", "fewer than two of the runs have a recipe");
  table.text_columns = table.head.size();
  try {
    for (const KeyOfRecipes& key : differing_keys(recipes)) {
      auto& row = table.rows.emplace_back(std::vector<std::string>{key.key});
      for (const std::string& value : key.values) row.push_back(value.empty() ? "(absent)" : value);
    }
  } catch (const Error& e) {
    return absence_html("Differences", e.what());
  }
  if (table.rows.empty()) return "<p class=\"note\">The recipes are the same.</p>\n";
  return cat("<div id=\"differences\">", table_html(table, "Keys that differ"), "</div>\n");
}

std::string recipe_text(const RunData& run, const std::string& name, bool open) {
  std::string html;
  if (run.recipe_text)
    html = cat("<details", open ? " open=\"open\"" : "", "><summary>", escaped("Recipe of " + name),
               "</summary>\n<div class=\"scroll\" tabindex=\"0\"><pre>", escaped(*run.recipe_text),
               "</pre></div></details>\n");
  if (!run.no_recipe.empty()) html += absence_html("Recipe of " + name, run.no_recipe);
  return html;
}

}  // namespace

std::string recipes_html(std::span<const RunData> runs, const std::vector<std::string>& names) {
  std::string html;
  if (runs.size() > 1) html += difference_table(runs, names);
  for (std::size_t i = 0; i < runs.size(); ++i) html += recipe_text(runs[i], names[i], runs.size() == 1);
  return html;
}

}  // namespace nemocube::run_report
