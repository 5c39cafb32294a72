#include "train/look/report/line_chart.h"

#include <algorithm>
#include <limits>
#include <map>

#include "core/error.h"
#include "train/look/report/html.h"
#include "train/look/report/plot_area.h"

namespace nemocube::run_report {
namespace {

constexpr std::size_t most_dots = 60;  // on a line that has no means
constexpr std::size_t most_rows = 1200;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

PlotArea area_of(const LineChart& chart) {
  Range x, y;
  for (const LineSeries& series : chart.series)
    for (const Point& p : series.points) {
      x.take(p.x);
      y.take(p.y);
    }
  if (chart.from_zero) y.take(0);
  return {step_axis(x.low, x.high, chart.wide ? 10 : 6), rounded_axis(y.low, y.high, 6), chart.wide,
          chart.wide ? 390.0 : 220.0};
}

std::string path_of(const std::vector<Point>& points, const PlotArea& area, const std::string& classes) {
  if (points.size() < 2) return "";
  std::string path;
  for (const Point& p : points)
    path += cat(path.empty() ? "M" : "L", coordinate(area.across(p.x)), " ", coordinate(area.up(p.y)));
  return cat("<path class=\"", classes, "\" d=\"", path, "\"/>\n");
}

std::string series_svg(const LineSeries& series, const PlotArea& area, bool named) {
  std::string svg = cat("<g class=\"series ", colour_class(series.colour), "\" data-series=\"",
                        escaped(series.name), "\">\n");
  const bool faint = !series.means.empty();
  const std::string line = series.dash == 0 ? "line" : series.dash == 1 ? "dashed" : "dotted";
  svg += path_of(series.points, area, faint ? "faint" : line);
  if (faint) svg += path_of(series.means, area, line);
  const bool dots = !faint && (series.dash > 0 || series.points.size() <= most_dots);
  for (const Point& p : series.points)
    svg += cat("<circle class=\"", dots ? "dot" : "spot", "\" cx=\"", coordinate(area.across(p.x)),
               "\" cy=\"", coordinate(area.up(p.y)), "\" r=\"", dots ? "3.5" : "5", "\" data-x=\"",
               exact(p.x), "\" data-y=\"", exact(p.y), "\"><title>", named ? escaped(series.name) + ", " : "",
               "step ", readable(p.x), ": ", readable(p.y), "</title></circle>\n");
  return svg + "</g>\n";
}

Table table_of(const LineChart& chart) {
  Table table{{"step"}, {}, 0};
  std::map<double, std::vector<std::string>> rows;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    table.head.push_back(chart.series[i].name);
    for (const Point& p : chart.series[i].points) {
      auto& row = rows[p.x];
      row.resize(chart.series.size());
      row[i] = readable(p.y);
    }
  }
  const std::size_t every = (rows.size() + most_rows - 1) / most_rows;
  if (every > 1) table.note = cat(", one row of ", every);
  std::size_t number = 0;
  for (auto& [step, row] : rows) {
    if (number++ % every != 0 && number != rows.size()) continue;
    row.insert(row.begin(), readable(step));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string description(const LineChart& chart) {
  std::string text = chart.about + ".";
  for (const LineSeries& series : chart.series) {
    if (series.points.empty()) continue;
    const auto& p = series.points;
    const auto [low, high] = std::ranges::minmax(p, {}, &Point::y);
    text += cat(" ", series.name, ": ", readable(p.front().y), " at step ", readable(p.front().x), ", ",
                readable(p.back().y), " at step ", readable(p.back().x), ", lowest ", readable(low.y),
                ", highest ", readable(high.y), ".");
  }
  return text;
}

}  // namespace

std::string line_chart_html(const LineChart& chart) {
  Figure figure{chart.id, chart.title, chart.about, chart.wide};
  for (const LineSeries& s : chart.series)
    if (chart.series.size() > 1)
      figure.legend.push_back({s.name, s.colour,
                               s.dash == 0   ? Sign::line
                               : s.dash == 1 ? Sign::dashed
                                             : Sign::dotted});
  if (!chart.marks.empty()) figure.legend.push_back({chart.mark_name, 0, Sign::mark});
  const PlotArea area = area_of(chart);
  figure.drawing = svg_begin(figure, area.width, area.height, description(chart)) + area.frame("step");
  for (const ChartMark& mark : chart.marks)
    figure.drawing +=
        cat("<g class=\"moment\"><title>", escaped(mark.text), "</title>\n",
            svg_line(area.across(mark.x), area.top, area.across(mark.x), area.bottom, "moment"), "</g>\n");
  // The first series is drawn last, over the others.
  for (std::size_t i = chart.series.size(); i-- > 0;)
    figure.drawing += series_svg(chart.series[i], area, chart.series.size() > 1);
  figure.drawing += "</svg>\n";
  figure.table = table_of(chart);
  return figure_html(figure);
}

}  // namespace nemocube::run_report
