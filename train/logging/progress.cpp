#include "train/logging/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "core/error.h"

namespace nemocube {
namespace {

constexpr std::size_t window =
    32;  // steps: long enough to smooth lengths of samples, short enough to follow change

std::string formatted(const char* format, double value) {
  if (std::isnan(value)) return "nan";  // printf writes its meaningless sign
  std::array<char, 64> text;
  const int size = std::snprintf(text.data(), text.size(), format, value);
  return {text.data(), static_cast<std::size_t>(std::clamp(size, 0, 63))};
}

std::string two_units(std::int64_t big, const char* big_name, std::int64_t small, const char* small_name) {
  return cat(big, big_name, small < 10 ? "0" : "", small, small_name);
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void to_stderr(std::string_view text) {
  // Losing a line must not stop a run, so the result is not looked at.
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string short_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const auto s = static_cast<std::int64_t>(std::llround(seconds));
  if (s < 60) return cat(s, "s");
  if (s < 3600) return two_units(s / 60, "m", s % 60, "s");
  if (s < 86400) return two_units(s / 3600, "h", s / 60 % 60, "m");
  return two_units(s / 86400, "d", s / 3600 % 24, "h");
}

std::string short_count(double value) {
  if (!std::isfinite(value)) return "?";
  const char* unit = "";
  for (const char* bigger : {"k", "M", "G"}) {
    if (std::abs(value) < 999.5) break;
    value /= 1000;
    unit = bigger;
  }
  return formatted(*unit != 0 && value < 99.95 ? "%.1f" : "%.0f", value) + unit;
}

Progress::Progress(ProgressOptions options, Sink sink, Clock clock)
    : options_(options), sink_(std::move(sink)), clock_(std::move(clock)) {
  shown_at_ = clock_();
  recent_.push_back({shown_at_, -1, 0});
}

Progress Progress::on_stderr() {
  ProgressOptions options;
  options.terminal = ::isatty(STDERR_FILENO) == 1;
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) options.width = size.ws_col;
  return Progress(options, to_stderr, steady_seconds);
}

void Progress::step(const ProgressStep& now) {
  const double time = clock_();
  // A resumed run begins anywhere; its first step says where.
  if (recent_.size() == 1 && recent_[0].step < 0) recent_[0].step = now.step;
  recent_.push_back({time, now.step + 1, recent_.back().tokens + now.tokens});
  if (recent_.size() > window + 1) recent_.pop_front();
  if (!due(now, time)) return;
  const std::string text = describe(now);
  if (options_.terminal)
    rewrite(text);
  else
    sink_(text + "\n");
  shown_ = true;
  shown_at_ = time;
  shown_step_ = now.step;
}

bool Progress::due(const ProgressStep& now, double time) const {
  if (!shown_ || now.step + 1 >= now.total) return true;
  if (options_.terminal) return time - shown_at_ >= options_.min_seconds;
  return now.step - shown_step_ >= options_.every_steps || time - shown_at_ >= options_.every_seconds;
}

std::string Progress::describe(const ProgressStep& now) const {
  const Mark &from = recent_.front(), &to = recent_.back();
  const double seconds = to.time - from.time;
  std::string text =
      cat("step ", now.step + 1, "/", now.total, "  loss ", formatted("%.4f", now.loss), "  lr ",
          formatted("%.3g", now.lr), "  grad norm ", formatted("%.3g", now.grad_norm));
  if (seconds > 0) {
    text += cat("  ", short_count(static_cast<double>(to.tokens - from.tokens) / seconds), " tokens/s");
    const double per_step = seconds / static_cast<double>(to.step - from.step);
    text += cat("  ETA ", short_duration(per_step * static_cast<double>(now.total - now.step - 1)));
  }
  if (now.skipped) text += "  skipped";
  return text;
}

void Progress::rewrite(const std::string& text) {
  // The last column stays free: some terminals wrap as soon as it is used.
  const auto room = static_cast<std::size_t>(std::max(options_.width - 1, 1));
  std::string line = text.substr(0, room);
  const std::size_t length = line.size();
  if (line.size() < on_line_) line.append(on_line_ - line.size(), ' ');
  sink_(cat("\r", line));
  on_line_ = length;
}

void Progress::clear() {
  if (on_line_ == 0) return;
  sink_(cat("\r", std::string(on_line_, ' '), "\r"));
  on_line_ = 0;
  shown_ = false;
}

void Progress::finish() {
  if (on_line_ > 0) sink_("\n");
  on_line_ = 0;
}

}  // namespace nemocube
