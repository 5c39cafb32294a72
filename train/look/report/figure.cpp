#include "train/look/report/figure.h"

#include "core/error.h"
#include "train/look/report/html.h"

namespace nemocube::run_report {
namespace {

std::string class_of(Sign sign) {
  switch (sign) {
    case Sign::line:
      return "line";
    case Sign::dashed:
      return "dashed";
    case Sign::dotted:
      return "dotted";
    case Sign::box:
      return "box";
    case Sign::mark:
      return "mark";
  }
  return "";
}

std::string legend_html(const std::vector<LegendEntry>& legend) {
  if (legend.empty()) return "";
  std::string html = "<ul class=\"legend\">";
  for (const LegendEntry& entry : legend)
    html += cat("<li><span class=\"sign ", class_of(entry.sign), " ", colour_class(entry.colour),
                "\" aria-hidden=\"true\"></span>", escaped(entry.name), "</li>");
  return html + "</ul>\n";
}

}  // namespace

std::string colour_class(std::size_t colour) { return cat("c", colour % 8); }

std::string table_html(const Table& table, const std::string& caption) {
  std::string html = cat("<div class=\"scroll\" tabindex=\"0\"><table><caption>", escaped(caption),
                         "</caption>\n<thead><tr>");
  const auto kind = [&](std::size_t column) { return column < table.text_columns ? " class=\"text\"" : ""; };
  for (std::size_t i = 0; i < table.head.size(); ++i)
    html += cat("<th scope=\"col\"", kind(i), ">", escaped(table.head[i]), "</th>");
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) html += cat("<td", kind(i), ">", escaped(row[i]), "</td>");
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string figure_html(const Figure& figure) {
  std::string html = cat("<figure id=\"", escaped(figure.id), "\"", figure.wide ? " class=\"wide\"" : "",
                         ">\n<figcaption><h3>", escaped(figure.title), "</h3><p>", escaped(figure.about),
                         "</p></figcaption>\n", legend_html(figure.legend), figure.drawing);
  if (!figure.table.rows.empty())
    html += cat("<details><summary>Numbers", escaped(figure.table.note), "</summary>\n",
                table_html(figure.table, figure.title), "</details>\n");
  return html + "</figure>\n";
}

std::string svg_begin(const Figure& figure, double width, double height, const std::string& description) {
  const std::string id = escaped(figure.id);
  return cat("<svg role=\"img\" viewBox=\"0 0 ", coordinate(width), " ", coordinate(height),
             "\" aria-labelledby=\"", id, "-title ", id, "-desc\"", figure.wide ? " class=\"wide\"" : "",
             ">\n<title id=\"", id, "-title\">", escaped(figure.title), "</title>\n<desc id=\"", id,
             "-desc\">", escaped(description), "</desc>\n");
}

std::string svg_text(double x, double y, const std::string& classes, const std::string& text) {
  return cat("<text x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" class=\"", classes, "\">",
             escaped(text), "</text>\n");
}

std::string svg_line(double x1, double y1, double x2, double y2, const std::string& classes) {
  return cat("<line x1=\"", coordinate(x1), "\" y1=\"", coordinate(y1), "\" x2=\"", coordinate(x2),
             "\" y2=\"", coordinate(y2), "\" class=\"", classes, "\"/>\n");
}

std::string absence_html(const std::string& title, const std::string& why) {
  return cat("<p class=\"absent\"><strong>", escaped(title), ":</strong> ", escaped(why), "</p>\n");
}

}  // namespace nemocube::run_report
