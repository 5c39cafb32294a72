#include "train/logging/wall_clock.h"

#include <array>
#include <cstdio>

namespace nemocube {

std::string utc_timestamp(std::chrono::system_clock::time_point time) {
  using namespace std::chrono;
  const auto milli = floor<milliseconds>(time);
  const auto day = floor<days>(milli);
  const year_month_day date(day);
  const hh_mm_ss clock(milli - day);
  std::array<char, 48> text;
  const int size = std::snprintf(
      text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ", static_cast<int>(date.year()),
      static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
      static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
      static_cast<int>(clock.seconds().count()), static_cast<int>(clock.subseconds().count()));
  return {text.data(), static_cast<std::size_t>(size)};
}

std::optional<double> seconds_of_timestamp(std::string_view text) {
  int year = 0, milli = 0;
  unsigned month = 0, day = 0, hour = 0, minute = 0, second = 0;
  int end = 0;
  const std::string copy(text);
  if (std::sscanf(copy.c_str(), "%4d-%2u-%2uT%2u:%2u:%2u.%3dZ%n", &year, &month, &day, &hour, &minute,
                  &second, &milli, &end) != 7 ||
      static_cast<std::size_t>(end) != text.size())
    return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year{year}, std::chrono::month{month},
                                         std::chrono::day{day}};
  if (!date.ok() || hour > 23 || minute > 59 || second > 60) return std::nullopt;
  const auto days = std::chrono::sys_days{date}.time_since_epoch().count();
  return 86400.0 * static_cast<double>(days) + 3600.0 * hour + 60.0 * minute + second + 1e-3 * milli;
}

}  // namespace nemocube
