#include "data/chat/jinja/local_time.h"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "data/chat/jinja/budget.h"

namespace nemocube::jinja {

namespace {

/// %f becomes microseconds, %s the seconds since 1970, %z and %Z nothing, as for Python's times without a
/// time zone.
std::string without_python_fields(std::string_view format, const Moment& moment) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(moment.time);
  const auto micro = std::chrono::floor<std::chrono::microseconds>(moment.time - seconds).count();
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    const char field = format[i] == '%' && i + 1 < format.size() ? format[i + 1] : ' ';
    if (field == 'f') {
      char digits[16];
      std::snprintf(digits, sizeof digits, "%06d", static_cast<int>(micro));
      out += digits;
    } else if (field == 's') {
      out += std::to_string(seconds.time_since_epoch().count());
    } else if (field == '%') {
      out += "%%";
    } else if (field != 'z' && field != 'Z') {
      out += format[i];
      continue;
    }
    ++i;
  }
  return out;
}

}  // namespace

std::string local_time(const std::string& format, const Moment& moment) {
  if (format.size() > 1000) raise("strftime_now wants a format of at most 1000 bytes, got ", format.size());
  // Python hands the format to C, for which a NUL byte ends it.
  const std::string plain =
      without_python_fields(std::string_view(format).substr(0, format.find('\0')), moment);
  if (plain.empty()) return "";
  const auto shown = std::chrono::floor<std::chrono::seconds>(moment.time + moment.east_of_utc);
  const std::time_t seconds = std::chrono::system_clock::to_time_t(shown);
  std::tm fields{};
  gmtime_r(&seconds, &fields);
  constexpr std::size_t most = 64 * 1024;
  const std::string guarded = plain + "|";  // an empty result is no error
  std::string out;
  for (std::size_t room = 64 + 4 * plain.size(); out.empty() && room <= most;
       room = room < most ? std::min(4 * room, most) : most + 1) {
    out.resize(room);
    out.resize(std::strftime(out.data(), out.size(), guarded.c_str(), &fields));
  }
  if (out.empty()) raise("strftime_now wants a format whose result has less than 64 KiB");
  out.pop_back();
  return out;
}

}  // namespace nemocube::jinja
