#include "train/logging/progress.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "core/log.h"
#include "core/memory_limit.h"

namespace nemocube {
namespace {

// Steps over which rates are taken: enough to smooth the lengths of samples, few enough to follow change.
constexpr std::size_t window = 32;
constexpr std::int64_t plain_every_steps = 10;
constexpr std::size_t bar_columns = 12;

std::string formatted(const char* format, double value) {
  if (std::isnan(value)) return "nan";  // printf would add a meaningless sign
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

std::int64_t percent(std::int64_t done, std::int64_t total) {
  return static_cast<std::int64_t>(100.0 * static_cast<double>(done) /
                                   static_cast<double>(std::max<std::int64_t>(total, 1)));
}

std::string bar(std::int64_t done, std::int64_t total, const ProgressDisplay& display) {
  return display.terminal ? "  " + progress_bar(done, total, bar_columns) : "";
}

}  // namespace

std::string transfer_text(std::int64_t bytes, double seconds) {
  std::string text =
      cat(bytes_text(bytes), " in ", formatted(seconds < 9.95 ? "%.1f" : "%.0f", seconds), " s");
  if (seconds > 0)
    text += cat(", ", bytes_text(static_cast<std::int64_t>(static_cast<double>(bytes) / seconds)), "/s");
  return text;
}

std::string progress_bar(std::int64_t done, std::int64_t total, std::size_t columns) {
  const std::size_t width = std::max<std::size_t>(columns, 3) - 2;
  const auto share = static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(total, 1));
  const auto full = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(width));
  return cat("[", std::string(full, '#'), std::string(width - full, '-'), "]");
}

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

ProgressDisplay stderr_display() {
  ProgressDisplay display;
  display.clock = steady_seconds;
  display.terminal = terminal_on_stderr();
  if (!log_enabled(LogLevel::info)) {
    display.show = [](std::string_view) {};
    display.shown = [] { return std::string(); };
    display.keep = [] {};
  } else if (display.terminal) {
    display.show = set_status_line;
    display.shown = status_line;
    display.keep = keep_status_line;
  } else {
    display.show = [](std::string_view text) { log_info(text); };
  }
  return display;
}

StepProgress::StepProgress(ProgressDisplay display) : display_(std::move(display)) {
  shown_at_ = display_.clock();
  recent_.push_back({shown_at_, -1, 0});
}

StepProgress::~StepProgress() {
  if (display_.terminal) display_.keep();
}

void StepProgress::step(const ProgressStep& now) {
  const double time = display_.clock();
  // A resumed run begins at any step; its first step says at which.
  if (recent_.size() == 1 && recent_[0].step < 0) recent_[0].step = now.step;
  recent_.push_back({time, now.step + 1, recent_.back().tokens + now.tokens});
  if (recent_.size() > window + 1) recent_.pop_front();
  if (!due(now, time)) return;
  display_.show(describe(now));
  shown_at_ = time;
  shown_step_ = now.step;
}

bool StepProgress::due(const ProgressStep& now, double time) const {
  if (shown_step_ < 0 || now.step + 1 >= now.total) return true;
  if (display_.terminal) return time - shown_at_ >= display_.min_seconds;
  return now.step - shown_step_ >= plain_every_steps || time - shown_at_ >= display_.every_seconds;
}

std::string StepProgress::describe(const ProgressStep& now) const {
  const Mark &from = recent_.front(), &to = recent_.back();
  const double seconds = to.time - from.time;
  std::string text = cat("step ", now.step, " of ", now.total, " (", percent(now.step + 1, now.total), " %)",
                         bar(now.step + 1, now.total, display_), "  epoch ", now.epoch);
  if (now.skipped) text += "  skipped";
  if (seconds > 0) {
    const double per_step = seconds / static_cast<double>(to.step - from.step);
    text += cat("  ", short_duration(per_step * static_cast<double>(now.total - now.step - 1)), " left");
  }
  text += cat("  loss ", formatted("%.4f", now.loss));
  for (std::size_t k = 0; k < now.mtp_losses.size(); ++k)
    text += cat(k == 0 ? "  mtp " : " ", formatted("%.4f", now.mtp_losses[k]));
  if (seconds > 0)
    text += cat("  ", short_count(static_cast<double>(to.tokens - from.tokens) / seconds), " tokens/s");
  text += cat("  lr ", formatted("%.3g", now.lr), "  grad norm ", formatted("%.3g", now.grad_norm));
  if (now.imbalance > 0) text += cat("  busiest expert ", formatted("%.2f", now.imbalance), " x mean");
  return text;
}

TaskProgress::TaskProgress(std::string what, std::string unit, ProgressDisplay display)
    : what_(std::move(what)), unit_(std::move(unit)), display_(std::move(display)) {
  started_at_ = shown_at_ = display_.clock();
  if (display_.terminal) before_ = display_.shown();
}

TaskProgress::~TaskProgress() {
  if (display_.terminal && shown_) display_.show(before_);
}

void TaskProgress::operator()(std::int64_t done, std::int64_t total) {
  const double time = display_.clock();
  const double pause = display_.terminal ? display_.min_seconds : display_.every_seconds;
  if (time - shown_at_ < pause) return;
  display_.show(describe(done, total, time));
  shown_at_ = time;
  shown_ = true;
}

std::string TaskProgress::describe(std::int64_t done, std::int64_t total, double time) const {
  const bool bytes = unit_ == "bytes";
  std::string text = bytes ? cat(what_, ": ", bytes_text(done), " of ", bytes_text(total))
                           : cat(what_, ": ", done, " of ", total, " ", unit_);
  text += cat(" (", percent(done, total), " %)", bar(done, total, display_));
  if (done == 0 || !(time > started_at_)) return text;
  const double rate = static_cast<double>(done) / (time - started_at_);
  if (done < total) text += cat("  ", short_duration(static_cast<double>(total - done) / rate), " left");
  return text + cat("  ",
                    bytes ? bytes_text(static_cast<std::int64_t>(rate)) : short_count(rate) + " " + unit_,
                    "/s");
}

}  // namespace nemocube
