#include "core/log.h"

#include <unistd.h>

#include <array>
#include <atomic>

namespace nemocube {
namespace {
std::atomic<LogLevel> threshold{LogLevel::info};
std::atomic<int> log_rank{0};
constexpr std::array<std::string_view, 4> names{"debug", "info", "warning", "error"};
}  // namespace

void set_log_level(LogLevel level) { threshold = level; }
bool log_enabled(LogLevel level) { return level >= threshold; }
void set_log_rank(int rank) { log_rank = rank; }

LogLevel parse_log_level(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<LogLevel>(i);
  fail("unknown log level '", name, "' (known: debug, info, warning, error)");
}

void write_log(LogLevel level, const std::string& text) {
  std::string line = cat("[rank ", log_rank.load(), "] ");
  if (level != LogLevel::info) line += cat(names[static_cast<std::size_t>(level)], ": ");
  line += text;
  line += '\n';
  // Losing a log line must not stop a run, so the result is not looked at.
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace nemocube
