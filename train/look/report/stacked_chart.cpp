#include "train/look/report/stacked_chart.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "train/look/report/html.h"
#include "train/look/report/plot_area.h"

namespace nemocube::run_report {
namespace {

std::string percent_text(double share) {
  if (share > 0 && share < 0.0005) return "below 0.1 %";
  return readable(std::round(share * 1000) / 10) + " %";
}

std::string column_svg(const StackedChart& chart, const RunMeans::Mean& column, const PlotArea& area) {
  std::string svg;
  double below = 0;
  const auto [first, last] = std::minmax(column.first_x, column.last_x);
  const double left = area.across(first), right = area.across(last + 1);
  const double gap = right - left > 4 ? 1 : 0;
  for (std::size_t i = 0; i < chart.parts.size(); ++i) {
    const double value = column.values[i], top = area.up(below + value), bottom = area.up(below);
    svg +=
        cat("<rect class=\"part ", colour_class(i), "\" x=\"", coordinate(left), "\" y=\"", coordinate(top),
            "\" width=\"", coordinate(right - left - gap), "\" height=\"", coordinate(bottom - top),
            "\" data-value=\"", exact(value), "\" data-first=\"", exact(column.first_x), "\" data-last=\"",
            exact(column.last_x), "\"><title>", escaped(chart.parts[i]), ", ",
            steps_text(column.first_x, column.last_x), ": ", readable(value), " s</title></rect>\n");
    below += value;
  }
  return svg;
}

}  // namespace

std::string steps_text(double first, double last) {
  if (first == last) return cat("step ", readable(first));
  return cat("steps ", readable(first), " to ", readable(last));
}

std::string stacked_chart_html(const StackedChart& chart) {
  Figure figure{chart.id, chart.title, chart.about, true};
  double highest = 0;
  std::vector<double> sums(chart.parts.size());
  for (const auto& column : chart.columns) {
    highest = std::max(highest, std::accumulate(column.values.begin(), column.values.end(), 0.0));
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] += column.values[i] * static_cast<double>(column.count);
  }
  const double all = std::accumulate(sums.begin(), sums.end(), 0.0);
  std::string description = chart.about + ".";
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::string share = cat(chart.parts[i], ", ", percent_text(all > 0 ? sums[i] / all : 0));
    figure.legend.push_back({share, i, Sign::box});
    description += cat(" ", share, ".");
  }
  // Steps of a log that two processes wrote may go back.
  double first_step = chart.columns.front().first_x, last_step = chart.columns.front().last_x;
  for (const auto& column : chart.columns) {
    first_step = std::min({first_step, column.first_x, column.last_x});
    last_step = std::max({last_step, column.first_x, column.last_x});
  }
  const PlotArea area(step_axis(first_step, last_step + 1, 10), rounded_axis(0, highest, 6), true, 300);
  figure.drawing = svg_begin(figure, area.width, area.height, description) + area.frame("step");
  figure.table.head = {"steps"};
  for (const std::string& part : chart.parts) figure.table.head.push_back(part);
  for (const auto& column : chart.columns) {
    figure.drawing += column_svg(chart, column, area);
    std::vector<std::string> row{column.first_x == column.last_x
                                     ? readable(column.first_x)
                                     : cat(readable(column.first_x), " to ", readable(column.last_x))};
    for (const double value : column.values) row.push_back(readable(value));
    figure.table.rows.push_back(std::move(row));
  }
  figure.drawing += "</svg>\n";
  return figure_html(figure);
}

}  // namespace nemocube::run_report
