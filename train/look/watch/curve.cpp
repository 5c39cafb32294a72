#include "train/look/watch/curve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

namespace nemocube {
namespace {

using Heights = std::vector<std::optional<double>>;  // of each column of dots

/// Dot `x` of `width` shows the values from x * n / width on, up to those of the next dot.
Heights means(std::span<const double> values, std::size_t width) {
  Heights heights(width);
  for (std::size_t x = 0; x < width; ++x) {
    double sum = 0;
    int count = 0;
    for (std::size_t i = x * values.size() / width; i < (x + 1) * values.size() / width; ++i)
      if (std::isfinite(values[i])) sum += values[i], ++count;
    if (count > 0) heights[x] = sum / count;
  }
  return heights;
}

Heights joined(std::span<const double> values, std::size_t width) {
  Heights heights(width);
  for (std::size_t x = 0; x < width; ++x) {
    const double at =
        width > 1 ? static_cast<double>(x * (values.size() - 1)) / static_cast<double>(width - 1) : 0;
    const auto left = static_cast<std::size_t>(at), right = std::min(left + 1, values.size() - 1);
    const double share = at - static_cast<double>(left);
    const double height = share == 0 ? values[left] : values[left] * (1 - share) + values[right] * share;
    if (std::isfinite(height)) heights[x] = height;
  }
  return heights;
}

/// Rows of dots, the highest first.
class Dots {
 public:
  Dots(std::size_t width, std::size_t height) : width_(width), height_(height), set_(width * height, false) {}
  bool at(std::size_t x, std::size_t y) const { return set_[y * width_ + x]; }
  void set(std::size_t x, std::ptrdiff_t y) { set_[static_cast<std::size_t>(y) * width_ + x] = true; }

  /// Draws the heights, and what joins neighbours.
  void draw(const Heights& heights, double least, double most) {
    const auto lowest = static_cast<double>(height_ - 1);
    std::ptrdiff_t before = -1;  // the row of the dot to the left; -1: there is none
    for (std::size_t x = 0; x < width_; ++x) {
      if (!heights[x]) {
        before = -1;
        continue;
      }
      const double share = most > least ? (*heights[x] - least) / (most - least) : 0.5;
      const std::ptrdiff_t y = std::lround((1 - share) * lowest);
      set(x, y);
      if (before >= 0)
        for (std::ptrdiff_t between = std::min(y, before) + 1; between < std::max(y, before); ++between)
          set(x, between);
      before = y;
    }
  }

 private:
  std::size_t width_, height_;
  std::vector<bool> set_;
};

/// U+2800 plus a bit for each dot, whose numbers go down the left column, then the right one, then along the
/// last row.
std::string braille_character(const Dots& dots, std::size_t column, std::size_t row) {
  constexpr std::array<std::array<unsigned, 2>, 4> bits{
      {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
  unsigned set = 0;
  for (std::size_t y = 0; y < 4; ++y)
    for (std::size_t x = 0; x < 2; ++x)
      if (dots.at(2 * column + x, 4 * row + y)) set |= bits[y][x];
  if (set == 0) return " ";
  return {static_cast<char>(0xE2), static_cast<char>(0xA0 | (set >> 6)),
          static_cast<char>(0x80 | (set & 0x3F))};
}

}  // namespace

Curve draw_curve(std::span<const double> values, std::size_t columns, std::size_t rows, bool braille) {
  Curve curve{std::vector<std::string>(rows, std::string(columns, ' ')), 0, 0};
  if (values.empty() || columns == 0 || rows == 0) return curve;
  const std::size_t width = braille ? 2 * columns : columns, height = braille ? 4 * rows : rows;
  const Heights heights = values.size() > width ? means(values, width) : joined(values, width);
  bool any = false;
  for (const auto& h : heights) {
    if (!h) continue;
    curve.least = any ? std::min(curve.least, *h) : *h;
    curve.most = any ? std::max(curve.most, *h) : *h;
    any = true;
  }
  if (!any) return curve;
  Dots dots(width, height);
  dots.draw(heights, curve.least, curve.most);
  for (std::size_t row = 0; row < rows; ++row) {
    curve.rows[row].clear();
    for (std::size_t column = 0; column < columns; ++column)
      curve.rows[row] += braille ? braille_character(dots, column, row) : dots.at(column, row) ? "*" : " ";
  }
  return curve;
}

}  // namespace nemocube
