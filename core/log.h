#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

/// Leveled messages on standard error, "warning: text". Standard output stays for results.
namespace nemocube {

enum class LogLevel { debug, info, warning, error };
void set_log_level(LogLevel level);               ///< messages below are dropped; default info
LogLevel parse_log_level(std::string_view name);  ///< debug, info, warning, error; Error otherwise
/// Where `ranks` is above 1, "[rank R] " stands in front of every message, and only rank 0 writes info and
/// the status line. Default: rank 0 of 1.
void set_log_rank(int rank, int ranks);
/// Writes the line with one write call, so that lines of different ranks do not interleave. Terminal commands
/// in the text are shown, not obeyed: see printable_message().
void write_log(LogLevel level, const std::string& text);
bool log_enabled(LogLevel level);
/// `listener` gets each warning and error that this process writes from now on, without level and rank, after
/// the message was written. An empty function removes the listener. There is one listener at a time. Several
/// threads may call it. It must not throw, and does not get the messages that it writes itself.
void set_log_listener(std::function<void(LogLevel level, const std::string& text)> listener);

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

/// The status line of a terminal: one line below all messages that is rewritten in place. A message appears
/// above the status line. Fields of the text are separated by two spaces. When the text is wider than the
/// terminal, fields at its end are left out. The text is shown as an excerpt(). An empty text removes the
/// line.
void set_status_line(std::string_view text);
std::string status_line();  ///< the text last set; empty when there is no status line
/// Ends the status line: its text stays on the screen, and whatever follows starts on a new line.
void keep_status_line();
/// Whether standard error is a terminal that can show a status line.
bool terminal_on_stderr();
/// The longest beginning of `text` that ends between two fields and has at most `columns` characters. When
/// the first field alone is longer, the field is cut.
std::string_view fitting_fields(std::string_view text, std::size_t columns);

/// Writes `line`, which must contain its line end. Async-signal-safe, for use in signal handlers.
void write_log_in_signal_handler(std::string_view line) noexcept;

/// "1 step", "2 steps"; `plural` for a noun whose plural is not formed with s.
std::string counted(std::int64_t count, std::string_view noun, std::string_view plural = {});

}  // namespace nemocube
