#include "train/look/watch/curve.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace nemocube;
using Rows = std::vector<std::string>;

TEST_CASE("curve: few values are joined by lines") {
  const std::vector<double> down{4, 3, 2, 1};
  const Curve curve = draw_curve(down, 4, 4, false);
  CHECK(curve.rows == Rows{"*   ", " *  ", "  * ", "   *"});
  CHECK(curve.least == 1);
  CHECK(curve.most == 4);
  const std::vector<double> steep{3, 0};
  CHECK(draw_curve(steep, 2, 4, false).rows == Rows{"* ", " *", " *", " *"});
  const std::vector<double> one{7};
  CHECK(draw_curve(one, 3, 3, false).rows == Rows{"   ", "***", "   "});
}

TEST_CASE("curve: many values become means, all of them counting") {
  std::vector<double> many(1000, 5);
  for (std::size_t i = 500; i < 1000; ++i) many[i] = i % 2 == 0 ? 0 : 2;
  const Curve curve = draw_curve(many, 10, 3, false);
  CHECK(curve.rows == Rows{"*****     ", "     *    ", "     *****"});
  CHECK(curve.least == 1);
  CHECK(curve.most == 5);
}

TEST_CASE("curve: values that are not finite are gaps") {
  const std::vector<double> some{1, std::nan(""), 2, HUGE_VAL, 1};
  CHECK(draw_curve(some, 5, 2, false).rows == Rows{"  *  ", "*   *"});
  const std::vector<double> none{std::nan("")};
  CHECK(draw_curve(none, 3, 1, false).rows == Rows{"   "});
  CHECK(draw_curve({}, 3, 1, true).rows == Rows{"   "});
  CHECK(draw_curve(some, 0, 0, true).rows.empty());
}

TEST_CASE("curve: braille has 2 x 4 dots a character") {
  const std::vector<double> down{7, 6, 5, 4, 3, 2, 1, 0};
  CHECK(draw_curve(down, 4, 2, true).rows == Rows{"⠑⢄  ", "  ⠑⢄"});
}
