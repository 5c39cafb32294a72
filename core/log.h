#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

/// Leveled messages on standard error, "[rank 0] warning: text". Standard output stays for results.
namespace nemocube {

enum class LogLevel { debug, info, warning, error };
void set_log_level(LogLevel level);               ///< messages below are dropped; default info
LogLevel parse_log_level(std::string_view name);  ///< debug, info, warning, error; Error otherwise
void set_log_rank(int rank);                      ///< the prefix; default 0
void write_log(LogLevel level,
               const std::string& text);  ///< one write call for a line, so ranks do not interleave
bool log_enabled(LogLevel level);

template <class... Parts>
void log_at(LogLevel level, Parts&&... parts) {
  if (log_enabled(level)) write_log(level, cat(std::forward<Parts>(parts)...));
}
template <class... Parts>
void log_info(Parts&&... parts) {
  log_at(LogLevel::info, std::forward<Parts>(parts)...);
}
template <class... Parts>
void log_warning(Parts&&... parts) {
  log_at(LogLevel::warning, std::forward<Parts>(parts)...);
}
template <class... Parts>
void log_debug(Parts&&... parts) {
  log_at(LogLevel::debug, std::forward<Parts>(parts)...);
}

}  // namespace nemocube
