#pragma once
#include <string>
#include <vector>

#include "train/look/report/figure.h"
#include "train/look/report/thinning.h"

namespace nemocube::run_report {

struct LineSeries {
  std::string name;
  std::size_t colour = 0;
  int dash = 0;  ///< 0: drawn through; 1: dashed, 2 and more: dotted, and each point as a dot
  std::vector<Point> points;
  /// Means over runs of points: drawn strongly over the points, which are then faint. Empty: none.
  std::vector<Point> means = {};
};

/// A moment that a vertical line marks.
struct ChartMark {
  double x = 0;
  std::string text;
};

struct LineChart {
  std::string id, title, about;
  bool wide = false, from_zero = false;
  std::vector<LineSeries> series;
  std::vector<ChartMark> marks = {};
  std::string mark_name = {};  ///< for the legend
};

/// Lines over steps. Each point has the attributes data-x and data-y with exact numbers, and its numbers as a
/// tooltip. pre: a series has a point.
std::string line_chart_html(const LineChart& chart);

}  // namespace nemocube::run_report
