#include "train/look/report/lanes.h"

#include <algorithm>

#include "core/error.h"
#include "train/look/report/axis.h"
#include "train/look/report/figure.h"
#include "train/look/report/html.h"

namespace nemocube::run_report {
namespace {

constexpr double lanes_left = 92, lanes_right = 1104, lanes_top = 8;
constexpr double least_labelled = 22;  // width of a box that has room for the number of its microbatch

std::string words(const PipelineEvent& e) {
  return cat(e.name, e.microbatch < 0 ? "" : cat(", microbatch ", e.microbatch), ", chunk ", e.chunk);
}

std::string box_svg(const PipelineEvent& e, double seconds, double y, double height, std::int64_t rank) {
  const double scale = (lanes_right - lanes_left) / seconds, x = lanes_left + e.begin * scale,
               width = e.seconds * scale;
  std::string svg =
      cat("<rect class=\"", e.forward ? "forward" : "backward", e.chunk % 2 == 1 ? " odd" : "", "\" x=\"",
          coordinate(x), "\" y=\"", coordinate(y), "\" width=\"", coordinate(std::max(0.5, width)),
          "\" height=\"", coordinate(height), "\" rx=\"2\" data-begin=\"", exact(e.begin),
          "\" data-seconds=\"", exact(e.seconds), "\"><title>rank ", rank, ", ", escaped(words(e)), ": ",
          readable(e.seconds * 1e3), " ms from ", readable(e.begin * 1e3), " ms on</title></rect>\n");
  if (width >= least_labelled && e.microbatch >= 0)
    svg += svg_text(x + width / 2, y + height / 2, e.chunk % 2 == 1 ? "box odd" : "box",
                    std::to_string(e.microbatch));
  return svg;
}

bool has_odd_chunks(const PipelineProfile& profile) {
  for (const PipelineLane& lane : profile.lanes)
    for (const PipelineEvent& e : lane.events)
      if (e.chunk % 2 == 1) return true;
  return false;
}

}  // namespace

std::string pipeline_html(const std::string& id, const std::string& title, const PipelineProfile& profile) {
  const double seconds = std::max(profile.seconds, 1e-9);
  const double lane = std::clamp(240.0 / static_cast<double>(profile.lanes.size()), 16.0, 40.0);
  const double bottom = lanes_top + lane * static_cast<double>(profile.lanes.size());
  Figure figure{id, title,
                cat("milliseconds of ", profile.step < 0 ? "one step" : cat("step ", profile.step), ", from ",
                    profile.file, "; the number in a box is its microbatch",
                    has_odd_chunks(profile) ? ", a lighter box belongs to an odd chunk" : ""),
                true};
  if (profile.ranks > profile.lanes.size())
    figure.about += cat("; the first ", profile.lanes.size(), " of ", profile.ranks, " ranks");
  figure.legend = {{"forward", 0, Sign::box}, {"backward", 1, Sign::box}};
  std::string description = cat(profile.lanes.size(), " ranks, ", readable(seconds * 1e3), " ms.");
  figure.table = {{"action", "rank", "begin (ms)", "duration (ms)"}, {}, 1};
  std::string boxes;
  for (std::size_t i = 0; i < profile.lanes.size(); ++i) {
    const PipelineLane& l = profile.lanes[i];
    const double y = lanes_top + static_cast<double>(i) * lane;
    boxes += svg_text(lanes_left - 8, y + lane / 2, "tick y", cat("rank ", l.rank));
    double busy = 0;
    for (const PipelineEvent& e : l.events) {
      busy += e.seconds;
      boxes += box_svg(e, seconds, y + 1, lane - 3, l.rank);
      figure.table.rows.push_back(
          {words(e), std::to_string(l.rank), readable(e.begin * 1e3), readable(e.seconds * 1e3)});
    }
    description += cat(" Rank ", l.rank, " works ", readable(100 * busy / seconds), " % of the time.");
  }
  const Axis axis = rounded_axis(0, seconds * 1e3, 10);
  std::string ticks;
  for (const double tick : axis.ticks) {
    const double x = lanes_left + (lanes_right - lanes_left) * tick / (seconds * 1e3);
    if (x > lanes_right + 1) continue;
    ticks += svg_line(x, lanes_top, x, bottom + 4, "grid");
    if (x < lanes_right - 60) ticks += svg_text(x, bottom + 8, "tick x", axis.tick_text(tick));
  }
  ticks += svg_text(lanes_right, bottom + 8, "tick name", "ms");
  figure.drawing = svg_begin(figure, 1120, bottom + 44, description) + ticks + boxes + "</svg>\n";
  return figure_html(figure);
}

}  // namespace nemocube::run_report
