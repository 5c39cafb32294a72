#pragma once
#include <string>

#include "train/look/report/axis.h"
#include "train/look/report/figure.h"

namespace nemocube::run_report {

/// The part of a drawing between its axes.
struct PlotArea {
  Axis x, y;
  double left, right, top, bottom;  ///< edges, in coordinates of the drawing
  double width, height;             ///< of the whole drawing

  /// Room for the texts of axes around the area. Wide drawings have texts that grow more on small screens.
  PlotArea(Axis x_axis, Axis y_axis, bool wide, double area_height);
  double across(double value) const { return left + (right - left) * x.share(value); }
  double up(double value) const { return bottom + (top - bottom) * y.share(value); }
  /// Grid lines and the texts of ticks.
  std::string frame(const std::string& x_name) const;
};

}  // namespace nemocube::run_report
