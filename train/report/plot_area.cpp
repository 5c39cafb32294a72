#include "train/report/plot_area.h"

namespace nemocube::run_report {

PlotArea::PlotArea(Axis x_axis, Axis y_axis, bool wide, double area_height)
    : x(std::move(x_axis)),
      y(std::move(y_axis)),
      left(wide ? 76 : 58),
      right((wide ? 1120 : 560) - 16),
      top(14),
      bottom(top + area_height),
      width(wide ? 1120 : 560),
      height(bottom + (wide ? 44 : 34)) {}

std::string PlotArea::frame(const std::string& x_name) const {
  std::string svg;
  for (const double tick : y.ticks) {
    svg += svg_line(left, up(tick), right, up(tick), tick == y.low ? "axis" : "grid");
    svg += svg_text(left - 8, up(tick), "tick y", y.tick_text(tick));
  }
  for (const double tick : x.ticks) {
    svg += svg_line(across(tick), bottom, across(tick), bottom + 4, "axis");
    // The last text must not meet the name of the axis.
    if (across(tick) < right - 60) svg += svg_text(across(tick), bottom + 8, "tick x", x.tick_text(tick));
  }
  return svg + svg_text(right, bottom + 8, "tick name", x_name);
}

}  // namespace nemocube::run_report
