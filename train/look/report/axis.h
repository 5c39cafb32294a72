#pragma once
#include <string>
#include <vector>

namespace nemocube::run_report {

/// A linear axis. Ticks are multiples of 1, 2 or 5 times a power of ten.
struct Axis {
  double low = 0, high = 1;
  std::vector<double> ticks;
  double step = 1;  ///< between two ticks

  /// Where a value lies between low (0) and high (1).
  double share(double value) const { return (value - low) / (high - low); }
  /// All ticks with as many decimals as their step needs; thousands as "12k", millions as "1.5M".
  std::string tick_text(double tick) const;
};

/// Begins and ends with a tick. pre: low <= high, both finite and within 1e300
Axis rounded_axis(double low, double high, int most_ticks);
/// Begins at `low` and ends at `high`, two integers; ticks are integers.
Axis step_axis(double low, double high, int most_ticks);

}  // namespace nemocube::run_report
