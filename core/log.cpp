#include "core/log.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

#include "core/environment.h"
#include "core/quote.h"

namespace nemocube {
namespace {

std::atomic<LogLevel> threshold{LogLevel::info};
std::atomic<int> log_rank{0}, log_ranks{1};
constexpr std::array<std::string_view, 4> names{"debug", "info", "warning", "error"};

constexpr std::string_view erase_line = "\r\033[K";  // to the first column, then clear to the end

struct StatusLine {
  std::mutex mutex;
  std::string text;
};
StatusLine& status() {
  static StatusLine* line = new StatusLine;  // never destroyed: destructors of others may log
  return *line;
}
std::atomic<bool> status_shown{false};  // for signal handlers, which cannot lock

using Listener = std::function<void(LogLevel level, const std::string& text)>;
struct ListenerSlot {
  std::mutex mutex;
  std::shared_ptr<const Listener> listener;
};
ListenerSlot& listener_slot() {
  static ListenerSlot* slot = new ListenerSlot;  // never destroyed, like status()
  return *slot;
}

void tell_listener(LogLevel level, const std::string& text) {
  thread_local bool inside = false;
  if (inside || level < LogLevel::warning) return;
  std::shared_ptr<const Listener> listener;
  {
    const std::lock_guard lock(listener_slot().mutex);
    listener = listener_slot().listener;
  }
  if (!listener) return;
  inside = true;
  (*listener)(level, text);
  inside = false;
}

// Losing a message must not stop a run, so the result is ignored.
void to_stderr(std::string_view text) {
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
}

std::string_view visible(std::string_view text) {
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  // The last column stays free: some terminals wrap as soon as it is used.
  return fitting_fields(text, known ? size.ws_col - 1U : 79U);
}

}  // namespace

void set_log_level(LogLevel level) { threshold = level; }
bool log_enabled(LogLevel level) { return level >= threshold && (level != LogLevel::info || log_rank == 0); }
void set_log_rank(int rank, int ranks) {
  log_rank = rank;
  log_ranks = ranks;
}

LogLevel parse_log_level(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<LogLevel>(i);
  fail("unknown log level '", name, "' (known: debug, info, warning, error)");
}

void write_log(LogLevel level, const std::string& text) {
  std::string line;
  if (log_ranks > 1) line += cat("[rank ", log_rank.load(), "] ");
  if (level != LogLevel::info) line += cat(names[static_cast<std::size_t>(level)], ": ");
  line += printable_message(text);
  line += '\n';
  {
    const std::lock_guard lock(status().mutex);
    const std::string& below = status().text;
    to_stderr(below.empty() ? line : cat(erase_line, line, visible(below)));
  }
  tell_listener(level, text);
}

void set_log_listener(Listener listener) {
  const std::lock_guard lock(listener_slot().mutex);
  listener_slot().listener = listener ? std::make_shared<const Listener>(std::move(listener)) : nullptr;
}

void set_status_line(std::string_view text) {
  const std::lock_guard lock(status().mutex);
  if ((text.empty() && status().text.empty()) || log_rank > 0) return;
  status().text = excerpt(text);
  status_shown = !text.empty();
  to_stderr(cat(erase_line, visible(status().text)));
}

std::string status_line() {
  const std::lock_guard lock(status().mutex);
  return status().text;
}

void keep_status_line() {
  const std::lock_guard lock(status().mutex);
  if (status().text.empty()) return;
  status().text.clear();
  status_shown = false;
  to_stderr("\n");
}

bool terminal_on_stderr() {
  const char* kind = environment_variable("TERM");
  return ::isatty(STDERR_FILENO) == 1 && kind && std::string_view(kind) != "dumb";
}

std::string_view fitting_fields(std::string_view text, std::size_t columns) {
  if (text.size() <= columns) return text;
  const auto gap = text.rfind("  ", columns);
  return text.substr(0, gap == std::string_view::npos || gap == 0 ? columns : gap);
}

void write_log_in_signal_handler(std::string_view line) noexcept {
  const int code = errno;
  if (status_shown.load(std::memory_order_relaxed)) to_stderr(erase_line);
  to_stderr(line);
  errno = code;
}

std::string counted(std::int64_t count, std::string_view noun, std::string_view plural) {
  if (count == 1 || plural.empty()) return cat(count, " ", noun, count == 1 ? "" : "s");
  return cat(count, " ", plural);
}

}  // namespace nemocube
