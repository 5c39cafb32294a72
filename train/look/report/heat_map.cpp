#include "train/look/report/heat_map.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "train/look/report/figure.h"
#include "train/look/report/html.h"

namespace nemocube::run_report {
namespace {

constexpr double map_left = 76, map_right = 1104, map_top = 8;

double highest_of(const HeatMap& map) {
  double highest = map.lightest;
  for (const auto& row : map.values) highest = std::max(highest, *std::ranges::max_element(row));
  return highest;
}

std::string scale_html(const HeatMap& map, double highest) {
  return cat("<p class=\"scale\">", readable(map.lightest),
             " <span class=\"shades\" aria-hidden=\"true\"></span> ",
             readable(std::round(highest * 100) / 100), "</p>\n");
}

std::string cells_svg(const HeatMap& map, double cell_height, double highest) {
  const double width = (map_right - map_left) / static_cast<double>(map.columns.size());
  const double gap = width > 6 ? 1 : 0;
  std::string svg = "<g class=\"heat\">\n";
  for (std::size_t r = 0; r < map.rows.size(); ++r)
    for (std::size_t c = 0; c < map.columns.size(); ++c) {
      const double value = map.values[r][c];
      const double share = highest > map.lightest
                               ? std::clamp((value - map.lightest) / (highest - map.lightest), 0.0, 1.0)
                               : 0;
      svg += cat("<rect x=\"", coordinate(map_left + static_cast<double>(c) * width), "\" y=\"",
                 coordinate(map_top + static_cast<double>(r) * cell_height), "\" width=\"",
                 coordinate(width - gap), "\" height=\"", coordinate(cell_height - 1), "\" fill-opacity=\"",
                 coordinate(0.06 + 0.94 * share), "\" data-value=\"", exact(value), "\"><title>",
                 escaped(map.row_word), " ", escaped(map.rows[r]), ", ", escaped(map.column_word), " ",
                 escaped(map.columns[c]), ": ", readable(value), "</title></rect>\n");
    }
  return svg + "</g>\n";
}

}  // namespace

std::string heat_map_html(const HeatMap& map) {
  const double cell_height = std::clamp(240.0 / static_cast<double>(map.rows.size()), 14.0, 44.0);
  const double bottom = map_top + cell_height * static_cast<double>(map.rows.size());
  const double highest = highest_of(map);
  Figure figure{map.id, map.title, map.about, true};
  figure.drawing = scale_html(map, highest) +
                   svg_begin(figure, 1120, bottom + 40,
                             cat(map.about, ". ", map.rows.size(), " rows, ", map.columns.size(),
                                 " columns, from ", readable(map.lightest), " to ", readable(highest), "."));
  // Names of rows are farther apart than their texts are high.
  const auto every = static_cast<std::size_t>(std::max(1.0, 36 / cell_height));
  for (std::size_t r = 0; r < map.rows.size(); r += every)
    figure.drawing +=
        svg_text(map_left - 8, map_top + (static_cast<double>(r) + 0.5) * cell_height, "tick y", map.rows[r]);
  figure.drawing += cells_svg(map, cell_height, highest);
  figure.drawing +=
      svg_text(map_left, bottom + 6, "tick start", cat(map.column_word, " ", map.columns.front()));
  if (map.columns.size() > 1)
    figure.drawing +=
        svg_text(map_right, bottom + 6, "tick name", cat(map.column_word, " ", map.columns.back()));
  figure.drawing += "</svg>\n";
  figure.table.head = {map.column_word};
  for (const std::string& row : map.rows) figure.table.head.push_back(cat(map.row_word, " ", row));
  for (std::size_t c = 0; c < map.columns.size(); ++c) {
    std::vector<std::string> cells{map.columns[c]};
    for (const auto& row : map.values) cells.push_back(readable(row[c]));
    figure.table.rows.push_back(std::move(cells));
  }
  return figure_html(figure);
}

}  // namespace nemocube::run_report
