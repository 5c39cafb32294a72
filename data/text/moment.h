#pragma once
#include <chrono>
#include <string>

namespace nemocube {

/// A moment and the zone in which templates show it.
struct Moment {
  std::chrono::system_clock::time_point time{};
  std::chrono::seconds east_of_utc{0};  ///< of the zone, at that moment

  static Moment now();  ///< by the clock and in the zone of this machine
  friend bool operator==(const Moment&, const Moment&) = default;
};

/// In microseconds: "2026-11-30T05:38:19.123456+01:00". The offset has seconds where the zone has.
std::string to_string(const Moment& moment);
/// The same back. Seconds with their fraction, the time of day and the offset may be left out: midnight, and
/// UTC ("Z"). Throws Error naming the text in another form, of a day that there is not, or before 1900 or
/// after 2199.
Moment parse_moment(const std::string& text);

}  // namespace nemocube
