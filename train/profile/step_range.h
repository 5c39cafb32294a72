#pragma once
#include <cstdint>
#include <string>

namespace nemocube {

/// Training steps first, first + 1, ..., last, counted from 0 as everywhere.
struct StepRange {
  std::int64_t first = 0, last = 0;
  std::int64_t count() const { return last - first + 1; }
  bool operator==(const StepRange&) const = default;
};

/// The value of the option --profile, "steps=5-7". Throws Error for another form and for a range without
/// steps.
StepRange parse_step_range(const std::string& text);

/// "5-7"
std::string to_string(const StepRange& range);

}  // namespace nemocube
