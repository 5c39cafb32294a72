#include "train/look/report/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "core/error.h"

namespace nemocube::run_report {
namespace {

/// The least of 1, 2, 5, 10, ... times a power of ten that divides `span` into fewer than most_ticks parts.
double tick_step(double span, int most_ticks) {
  const double least = span / std::max(1, most_ticks - 1);
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

void add_ticks(Axis& axis) {
  const double first = std::ceil(axis.low / axis.step - 1e-6),
               last = std::floor(axis.high / axis.step + 1e-6);
  for (double i = first; i <= last; ++i) axis.ticks.push_back(i * axis.step + 0.0);  // no -0
}

}  // namespace

std::string Axis::tick_text(double tick) const {
  if (tick == 0) return "0";
  double largest = step;
  for (const double t : ticks) largest = std::max(largest, std::abs(t));
  std::array<char, 40> buffer;
  if (largest >= 1e15 || largest < 1e-3) {
    const int digits = std::clamp(static_cast<int>(std::floor(std::log10(std::abs(tick) * (1 + 1e-9))) -
                                                   std::floor(std::log10(step * (1 + 1e-9)))),
                                  0, 15);
    std::snprintf(buffer.data(), buffer.size(), "%.*e", digits, tick);
    std::string text = buffer.data();  // 2e-05: without the zero of the exponent
    const std::size_t sign = text.find('e') + 1;
    while (text.size() > sign + 2 && text[sign + 1] == '0') text.erase(sign + 1, 1);
    if (text[sign] == '+') text.erase(sign, 1);
    return text;
  }
  constexpr std::array<const char*, 5> suffixes{"", "k", "M", "G", "T"};
  const auto thousands =
      largest < 1e4
          ? std::size_t{0}
          : std::min<std::size_t>(4, static_cast<std::size_t>(std::log10(largest * (1 + 1e-9)) / 3));
  const double unit = std::pow(1e3, static_cast<double>(thousands));
  const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step / unit * (1 + 1e-9)))));
  std::snprintf(buffer.data(), buffer.size(), "%.*f", decimals, tick / unit);
  return std::string(buffer.data()) + suffixes[thousands];
}

Axis rounded_axis(double low, double high, int most_ticks) {
  expect(low <= high && std::abs(low) <= 1e300 && std::abs(high) <= 1e300, "axis from ", low, " to ", high);
  if (const double least = std::max({std::abs(low), std::abs(high), 1e-290}) * 1e-6; high - low < least) {
    const double room = high == 0 && low == 0 ? 1 : std::max(std::abs(high) * 0.1, 1e-290);
    low = low >= 0 && low < room ? 0 : low - room;
    high += room;
  }
  Axis axis;
  axis.step = tick_step(high - low, most_ticks);
  axis.low = std::floor(low / axis.step + 1e-6) * axis.step;
  axis.high = std::ceil(high / axis.step - 1e-6) * axis.step;
  add_ticks(axis);
  return axis;
}

Axis step_axis(double low, double high, int most_ticks) {
  expect(low <= high && std::abs(low) <= 1e18 && std::abs(high) <= 1e18, "axis from ", low, " to ", high);
  Axis axis;
  axis.low = low < high ? low : low - 0.5;
  axis.high = low < high ? high : high + 0.5;
  axis.step = std::max(1.0, tick_step(axis.high - axis.low, most_ticks));
  add_ticks(axis);
  return axis;
}

}  // namespace nemocube::run_report
