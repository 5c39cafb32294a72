#include "train/look/report/thinning.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace nemocube::run_report;

namespace {

double wave(int i) { return std::sin(i * 0.37) + (i == 4321 ? 100 : 0) - (i == 77'777 ? 50 : 0); }

}  // namespace

TEST_CASE("thinning: short curves keep every point") {
  for (const int count : {0, 1, 2, 999, 1000}) {
    CAPTURE(count);
    ThinnedPoints thin;
    std::vector<Point> all;
    for (int i = 0; i < count; ++i) {
      all.push_back({i * 2.0, wave(i)});
      thin.add(all.back());
    }
    CHECK(thin.points() == all);
    CHECK(thin.count() == count);
  }
}

TEST_CASE("thinning: long curves keep the first, the last and the extreme points, in order") {
  for (const int count : {1001, 5000, 100'000, 131'073}) {
    CAPTURE(count);
    ThinnedPoints thin;
    Point low{0, 1e9}, high{0, -1e9};
    for (int i = 0; i < count; ++i) {
      const Point p{static_cast<double>(i), wave(i)};
      if (p.y < low.y) low = p;
      if (p.y > high.y) high = p;
      thin.add(p);
    }
    const auto kept = thin.points();
    CHECK(kept.size() <= 1002);
    CHECK(kept.size() >= 400);
    CHECK(kept.front() == Point{0, wave(0)});
    CHECK(kept.back() == Point{static_cast<double>(count - 1), wave(count - 1)});
    CHECK(std::ranges::is_sorted(kept, {}, &Point::x));
    CHECK(std::ranges::adjacent_find(kept, {}, &Point::x) == kept.end());
    CHECK(std::ranges::find(kept, low) != kept.end());
    CHECK(std::ranges::find(kept, high) != kept.end());
    CHECK(thin.lowest() == low);
    CHECK(thin.highest() == high);
    for (const Point& p : kept) CHECK(p.y == wave(static_cast<int>(p.x)));
  }
}

TEST_CASE("thinning: means over runs, of which the last may be shorter") {
  RunMeans means(4);
  for (int i = 0; i < 9; ++i) means.add(i, {static_cast<double>(i), 10.0 * i});
  // More than four runs of one, then more than four of two: runs of four.
  const auto all = means.means();
  CHECK(means.run_length() == 4);
  REQUIRE(all.size() == 3);
  CHECK(all[0].first_x == 0);
  CHECK(all[0].last_x == 3);
  CHECK(all[0].values == std::vector<double>{1.5, 15});
  CHECK(all[1].values == std::vector<double>{5.5, 55});
  CHECK(all[2].first_x == 8);
  CHECK(all[2].count == 1);
  CHECK(all[2].values == std::vector<double>{8, 80});
}
