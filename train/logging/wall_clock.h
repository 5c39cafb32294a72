#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

/// The times in logs.
namespace nemocube {

using WallClock = std::function<std::chrono::system_clock::time_point()>;

/// UTC with milliseconds, "2026-08-22T09:05:03.007Z".
std::string utc_timestamp(std::chrono::system_clock::time_point time);
/// Seconds since 1970 of such a text; nothing for other texts.
std::optional<double> seconds_of_timestamp(std::string_view text);

}  // namespace nemocube
