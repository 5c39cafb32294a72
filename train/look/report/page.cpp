#include "train/look/report/page.h"

#include "core/error.h"
#include "core/version.h"
#include "train/look/report/html.h"
#include "train/look/report/sections.h"
#include "train/look/report/style.h"

namespace nemocube::run_report {
namespace {

std::string section_html(const std::string& id, const std::string& title, const std::string& content) {
  return cat("<section aria-labelledby=\"", id, "\">\n<h2 id=\"", id, "\">", escaped(title), "</h2>\n",
             content, "</section>\n");
}

std::string link_html(const std::string& id, const std::string& title) {
  return cat("<li><a href=\"#", id, "\">", escaped(title), "</a></li>");
}

}  // namespace

std::string page_html(std::span<const RunData> runs, const std::string& made) {
  const auto names = names_of(runs);
  std::string title = names[0];
  for (std::size_t i = 1; i < names.size(); ++i) title += ", " + names[i];
  std::string links = link_html("curves", "Curves"),
              sections = section_html("curves", "Curves", curves_html(runs, names));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string id = cat("run-", i), heading = runs.size() == 1 ? "Run" : "Run " + names[i];
    links += link_html(id, heading);
    sections += section_html(id, heading, facts_html(runs[i]) + parts_html(runs[i], i));
  }
  links += link_html("recipe", "Recipe");
  sections += section_html("recipe", runs.size() == 1 ? "Recipe" : "Recipes", recipes_html(runs, names));
  // No script runs and nothing is fetched, whatever a log holds.
  return cat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; style-src "
      "&#39;unsafe-inline&#39;\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
      escaped(title), "</title>\n<style>", style_sheet(), "</style>\n</head>\n<body>\n<header>\n",
      heading_html(runs, names), "<nav aria-label=\"Sections\"><ul>", links,
      "</ul></nav>\n</header>\n<main>\n", sections, "</main>\n<footer>Made by nemocube ", escaped(version()),
      " on ", escaped(readable_time(made)), " from the logs and the newest checkpoint of ",
      runs.size() == 1 ? "the run" : "each run", ".</footer>\n</body>\n</html>\n");
}

}  // namespace nemocube::run_report
