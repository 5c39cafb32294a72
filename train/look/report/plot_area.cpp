#include "train/look/report/plot_area.h"

#include <algorithm>

namespace nemocube::run_report {
namespace {

constexpr double tick_gap = 8;  // between a text of the y axis and the axis

/// Room for the longest text of the y axis where texts are largest: on small screens, where style.cpp sets 19
/// and 30 pixels. A digit is up to 0.64 of that wide (DejaVu Sans).
double room_for_ticks(const Axis& y, bool wide) {
  std::size_t longest = 0;
  for (const double tick : y.ticks) longest = std::max(longest, y.tick_text(tick).size());
  return tick_gap + static_cast<double>(longest) * 0.64 * (wide ? 30 : 19);
}

}  // namespace

PlotArea::PlotArea(Axis x_axis, Axis y_axis, bool wide, double area_height)
    : x(std::move(x_axis)),
      y(std::move(y_axis)),
      left(std::max<double>(wide ? 76 : 58, room_for_ticks(y, wide))),
      right((wide ? 1120 : 560) - 16),
      top(14),
      bottom(top + area_height),
      width(wide ? 1120 : 560),
      height(bottom + (wide ? 44 : 34)) {}

std::string PlotArea::frame(const std::string& x_name) const {
  std::string svg;
  for (const double tick : y.ticks) {
    svg += svg_line(left, up(tick), right, up(tick), tick == y.low ? "axis" : "grid");
    svg += svg_text(left - tick_gap, up(tick), "tick y", y.tick_text(tick));
  }
  for (const double tick : x.ticks) {
    svg += svg_line(across(tick), bottom, across(tick), bottom + 4, "axis");
    // The last text must not meet the name of the axis.
    if (across(tick) < right - 60) svg += svg_text(across(tick), bottom + 8, "tick x", x.tick_text(tick));
  }
  return svg + svg_text(right, bottom + 8, "tick name", x_name);
}

}  // namespace nemocube::run_report
