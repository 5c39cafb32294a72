#pragma once
#include <chrono>
#include <string>

namespace nemocube::jinja {

/// Python's datetime.strftime of a time in this machine's time zone, with English names. Throws Failure for
/// formats of more than 1000 bytes.
std::string local_time(const std::string& format, std::chrono::system_clock::time_point time);

}  // namespace nemocube::jinja
