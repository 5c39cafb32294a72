#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace nemocube {

/// A curve of characters.
struct Curve {
  std::vector<std::string>
      rows;                    ///< the highest values first; each of exactly the asked number of characters
  double least = 0, most = 0;  ///< of the points drawn: the middle of the lowest and the highest dots
};

/// Draws `values`, which are equally far apart, over all `columns`. With more values than
/// dots, a dot is the mean of its values; with fewer, lines join the values. Values that
/// are not finite are gaps. `braille`: UTF-8, 2 x 4 dots a character; otherwise ASCII, a
/// star a character. No finite value: blank rows.
Curve draw_curve(std::span<const double> values, std::size_t columns, std::size_t rows, bool braille);

}  // namespace nemocube
