#include "train/look/report/axis.h"

#include <doctest/doctest.h>

#include <cmath>

#include "train/look/report/plot_area.h"

using namespace nemocube::run_report;

namespace {

std::string texts(const Axis& axis) {
  std::string all;
  for (const double tick : axis.ticks) all += (all.empty() ? "" : " ") + axis.tick_text(tick);
  return all;
}

}  // namespace

TEST_CASE("axis: ticks are multiples of 1, 2 or 5, from one around the data to the other") {
  CHECK(texts(rounded_axis(0, 7.67, 6)) == "0 2 4 6 8");
  CHECK(texts(rounded_axis(0.14, 0.93, 6)) == "0 0.2 0.4 0.6 0.8 1.0");
  CHECK(texts(rounded_axis(-3, 12, 6)) == "-5 0 5 10 15");
  CHECK(texts(rounded_axis(0, 0.002, 6)) == "0 0.0005 0.0010 0.0015 0.0020");
  CHECK(texts(rounded_axis(0, 2e-5, 6)) == "0 5e-6 1.0e-5 1.5e-5 2.0e-5");
  CHECK(texts(rounded_axis(0, 12'345, 6)) == "0 5k 10k 15k");
  CHECK(texts(rounded_axis(0, 2.4e6, 6)) == "0 0.5M 1.0M 1.5M 2.0M 2.5M");
  CHECK(texts(step_axis(0, 11, 6)) == "0 5 10");
  CHECK(texts(step_axis(0, 3, 6)) == "0 1 2 3");
  CHECK(texts(step_axis(5, 5, 6)) == "5");
}

TEST_CASE("axis: any finite numbers give few ticks and places within the axis") {
  for (const double low : {-1e300, -1.0, 0.0, 1e-300, 0.1, 3.0, 1e15, 1e300})
    for (const double span : {0.0, 1e-300, 1e-12, 1.0, 1e9, 1e299}) {
      if (low + span > 1e300) continue;
      CAPTURE(low);
      CAPTURE(span);
      const Axis axis = rounded_axis(low, low + span, 6);
      CHECK(axis.ticks.size() <= 8);
      CHECK(std::isfinite(axis.share(low)));
      CHECK(axis.share(low) >= -1e-6);
      CHECK(axis.share(low + span) <= 1 + 1e-6);
    }
}

TEST_CASE("plot area: the longest text of the y axis has room where texts are largest") {
  const auto left = [](double highest, bool wide) {
    return PlotArea(step_axis(0, 10, 10), rounded_axis(0, highest, 6), wide, 100).left;
  };
  CHECK(left(1500, false) == 58);
  CHECK(left(8, true) == 76);
  // "0.0020": six characters of 12 pixels and a gap of 8; on wide drawings of 19.
  CHECK(left(0.002, false) >= 8 + 6 * 12);
  CHECK(left(0.002, true) >= 8 + 6 * 19);
}
