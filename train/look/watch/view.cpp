#include "train/look/watch/view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "core/error.h"
#include "core/log.h"
#include "core/memory_limit.h"
#include "train/logging/progress.h"
#include "train/look/watch/curve.h"
#include "train/look/watch/text.h"

namespace nemocube {
namespace {

constexpr std::size_t recent_steps = 32;   // that the time left follows from
constexpr std::size_t axis_columns = 9;    // of the numbers beside the curve
constexpr std::size_t label_columns = 14;  // of the names of other numbers

enum class Tone { plain, good, doubtful, bad };

struct Line {
  std::string text;
  Tone tone = Tone::plain;
};
using Lines = std::vector<Line>;

std::string number(const char* format, std::optional<double> value) {
  if (!value) return "?";
  if (std::isnan(*value)) return "nan";
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), format, *value);
  return text.data();
}

std::string step_seconds(std::optional<double> seconds) {
  if (!seconds) return "?";
  return *seconds < 1 ? number("%.0f ms", *seconds * 1000) : number("%.2f s", seconds);
}

std::string rate(std::optional<double> value) { return value ? short_count(*value) : "?"; }

std::string clock_of(double time) {  // UTC, as in the logs
  const auto second = static_cast<std::int64_t>(time) % 86400;
  std::array<char, 16> text;
  std::snprintf(text.data(), text.size(), "%02d:%02d:%02d", static_cast<int>(second / 3600),
                static_cast<int>(second / 60 % 60), static_cast<int>(second % 60));
  return text.data();
}

struct Means {
  std::optional<double> tokens_per_second, step_seconds;
};

Means means_of(const WatchedRun& run, std::size_t most) {
  double seconds = 0, tokens = 0;
  std::int64_t count = 0;
  for (std::size_t i = run.steps.size() - std::min(most, run.steps.size()); i < run.steps.size(); ++i)
    if (const auto taken = run.steps[i].seconds()) {
      seconds += *taken;
      tokens += *run.steps[i].tokens;
      ++count;
    }
  if (!(seconds > 0)) return {};
  return {tokens / seconds, seconds / static_cast<double>(count)};
}

std::int64_t steps_done(const WatchedRun& run) {
  if (!run.steps.empty()) return run.steps.back().step + 1;
  return run.start ? run.start->first_step : 0;
}

/// Seconds since the run was heard of.
double silence(const WatchedRun& run, const WatchMoment& moment) {
  double last = run.start ? run.start->time : 0;
  if (!run.steps.empty()) last = std::max(last, run.steps.back().time);
  return moment.quiet.value_or(std::max(moment.now - last, 0.0));
}

bool is_silent(const WatchedRun& run, const WatchMoment& moment) {
  const double step = means_of(run, recent_steps).step_seconds.value_or(0);
  return silence(run, moment) > std::max(60.0, 10 * step);
}

bool has_stepped(const WatchedRun& run) {
  return !run.steps.empty() && (!run.start || run.steps.back().time >= run.start->time);
}

Tone tone_of(const WatchedRun& run, const WatchMoment& moment) {
  if (run.end) return run.failed ? Tone::bad : run.signal != 0 ? Tone::doubtful : Tone::good;
  return is_silent(run, moment) ? Tone::doubtful : Tone::good;
}

class View {
 public:
  View(const WatchedRun& run, const WatchMoment& moment, const ViewOptions& options)
      : run_(run), moment_(moment), options_(options) {}

  Lines lines(const std::string& name) const {
    Lines head = head_of(name), tail = tail_of();
    const std::size_t taken = head.size() + tail.size();
    const std::size_t left = options_.rows > taken ? options_.rows - taken : 0;
    const Lines middle = curve(left);
    head.insert(head.end(), middle.begin(), middle.end());
    head.insert(head.end(), tail.begin(), tail.end());
    if (head.size() > options_.rows) head.resize(options_.rows);
    return head;
  }

 private:
  bool roomy() const { return options_.rows >= 20; }
  bool two_columns() const { return options_.columns >= 60; }
  std::string clean(std::string_view text) const { return shown(text, options_.utf8); }

  Lines head_of(const std::string& name) const {
    Lines lines;
    lines.push_back(
        {at_both_ends(clean(name), state_of(run_, moment_), options_.columns), tone_of(run_, moment_)});
    if (const std::string about = about_run(); !about.empty()) lines.push_back({about});
    if (run_.steps.empty() && !run_.start) {
      if (!moment_.nearest.empty())
        lines.push_back({clean("the nearest name that is there: " + moment_.nearest)});
      return lines;
    }
    lines.push_back({progress()});
    if (roomy()) lines.push_back({});
    if (!run_.steps.empty()) lines.push_back({loss()});
    return lines;
  }

  std::string about_run() const {
    std::string text, layout = run_.layout;
    if (run_.start) {
      const WatchedStart& s = *run_.start;
      if (s.parameters > 0)
        text = cat(short_count(static_cast<double>(s.parameters)), " parameters in ", s.dtype, "  ");
      text += cat(counted(s.ranks, "rank"), s.host.empty() ? "" : " from " + s.host, "  ");
      if (layout.empty()) layout = s.layout;
    } else if (const auto ranks = ranks_by_rates()) {
      text = counted(*ranks, "rank") + "  ";
    }
    if (!run_.branch.empty()) text += cat("in ", run_.branch, "  ");
    return clean(text + layout);
  }

  // Of logs without history.jsonl.
  std::optional<std::int64_t> ranks_by_rates() const {
    if (run_.steps.empty()) return std::nullopt;
    const WatchedStep& s = run_.steps.back();
    if (!s.tokens_per_second || !s.tokens_per_second_and_rank || !(*s.tokens_per_second_and_rank > 0))
      return std::nullopt;
    return std::llround(*s.tokens_per_second / *s.tokens_per_second_and_rank);
  }

  std::string progress() const {
    const std::int64_t done = steps_done(run_), total = run_.start ? run_.start->total_steps : 0;
    const std::string epoch = run_.steps.empty() ? "" : cat("  epoch ", run_.steps.back().epoch);
    if (total == 0) return cat(counted(done, "step"), " done", epoch);
    std::string left;
    const auto each = means_of(run_, recent_steps).step_seconds;
    if (each && !run_.end && done < total)
      left = cat("  ", short_duration(*each * static_cast<double>(total - done)), " left");
    const std::string text = cat(done, " of ", counted(total, "step"), " (",
                                 100 * done / std::max<std::int64_t>(total, 1), " %)  ");
    const std::string rest = epoch + left;
    const std::size_t taken = text.size() + rest.size();
    if (taken + 10 > options_.columns) return text + rest;
    return text + bar(done, total, options_.columns - taken) + rest;
  }

  std::string bar(std::int64_t done, std::int64_t total, std::size_t columns) const {
    if (!options_.utf8) return progress_bar(done, total, columns);
    const auto eighths = static_cast<std::size_t>(
        8.0 * static_cast<double>(columns) *
        std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0));
    constexpr std::array<const char*, 8> parts{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    std::string text;
    for (std::size_t i = 0; i < eighths / 8; ++i) text += "█";
    text += parts[eighths % 8];
    while (columns_of(text) < columns) text += "░";
    return text;
  }

  std::string loss() const {
    std::optional<double> lowest;
    std::int64_t at = 0;
    for (const WatchedStep& s : run_.steps)
      if (s.loss && std::isfinite(*s.loss) && (!lowest || *s.loss < *lowest)) lowest = s.loss, at = s.step;
    std::string text = "loss " + number("%.4f", run_.steps.back().loss);
    if (lowest) text += cat(", lowest ", number("%.4f", lowest), " at step ", at);
    return text + cat("; last ", counted(std::ssize(run_.steps), "step"));
  }

  Lines curve(std::size_t room) const {
    constexpr std::size_t least_rows = 3;
    if (run_.steps.size() < 2 || room < least_rows + 1 || options_.columns < axis_columns + 12) return {};
    std::vector<double> losses;
    for (const WatchedStep& s : run_.steps) losses.push_back(s.loss.value_or(std::nan("")));
    const std::size_t width = options_.columns - axis_columns - 1,
                      height = std::min<std::size_t>(room - 1, 40);
    const Curve drawn = draw_curve(losses, width, height, options_.utf8);
    Lines lines;
    for (std::size_t row = 0; row < height; ++row) {
      const double share = static_cast<double>(row) / static_cast<double>(height - 1);
      const double value = drawn.most + (drawn.least - drawn.most) * share;
      const bool labelled = row == 0 || row + 1 == height || (height > 6 && row == height / 2);
      std::string label = labelled ? number("%.4g", value) : "";
      label.insert(0, label.size() < axis_columns - 1 ? axis_columns - 1 - label.size() : 0, ' ');
      lines.push_back({cat(label, options_.utf8 ? " │" : " |", drawn.rows[row])});
    }
    const std::string first = cat("step ", run_.steps.front().step), last = cat(run_.steps.back().step);
    lines.push_back({std::string(axis_columns + 1, ' ') + at_both_ends(first, last, width)});
    return lines;
  }

  Lines tail_of() const {
    Lines lines = validations();
    if (!run_.steps.empty()) {
      if (roomy()) lines.push_back({});
      for (std::string& line : numbers()) lines.push_back({std::move(line)});
    }
    if (run_.checkpoint) lines.push_back({checkpoint()});
    for (Line& line : messages()) lines.push_back(std::move(line));
    if (run_.end)
      for (std::string& text :
           wrapped(clean(*run_.end), options_.columns, std::max<std::size_t>(options_.rows / 8, 2)))
        lines.push_back({std::move(text), tone_of(run_, moment_)});
    return lines;
  }

  Lines validations() const {
    Lines lines;
    for (const auto& [set, v] : run_.validations) {
      if (!v.last || lines.size() >= std::max<std::size_t>(options_.rows / 8, 1)) continue;
      std::string text = cat("validation", set == "default" ? "" : " " + clean(set), " ",
                             number("%.4f", v.last->loss), " at step ", v.last->step);
      if (v.before) text += cat(", before ", number("%.4f", v.before->loss));
      if (v.lowest) text += cat(", lowest ", number("%.4f", v.lowest->loss), " at step ", v.lowest->step);
      lines.push_back({text});
    }
    return lines;
  }

  std::vector<std::string> numbers() const {
    const WatchedStep& now = run_.steps.back();
    const Means mean = means_of(run_, run_.steps.size());
    const std::vector<std::pair<std::string, std::string>> all{
        {"learning rate", number("%.3g", now.lr)},
        {"tokens/s", cat(rate(now.tokens_per_second), " (mean ", rate(mean.tokens_per_second), ")")},
        {"gradient norm", number("%.3g", now.grad_norm)},
        {"step time", cat(step_seconds(now.seconds()), " (mean ", step_seconds(mean.step_seconds), ")")},
        {"MFU", now.mfu ? number("%.1f %%", now.mfu) : "not logged"},
        {"memory", number("%.2f GiB a rank", now.mem)},
        {"skipped steps", cat(now.skipped_steps)},
        {"tokens/s/rank", rate(now.tokens_per_second_and_rank)}};
    std::vector<std::string> lines;
    const std::size_t second = std::min<std::size_t>(options_.columns * 13 / 30, 38);
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::string item = cat(padded(all[i].first, label_columns), all[i].second);
      if (two_columns() && i % 2 == 1)
        lines.back() = padded(lines.back(), second) + item;
      else
        lines.push_back(std::move(item));
    }
    return lines;
  }

  std::string checkpoint() const {
    const WatchedCheckpoint& c = *run_.checkpoint;
    std::string text = padded("checkpoint", label_columns) + clean(c.name);
    if (c.time > 0) text += cat(", ", short_duration(std::max(moment_.now - c.time, 0.0)), " ago");
    if (c.bytes && c.seconds)
      text += cat(" (", transfer_text(static_cast<std::int64_t>(*c.bytes), *c.seconds), ")");
    return text;
  }

  Lines messages() const {
    Lines lines;
    const std::size_t count = std::min(run_.messages.size(), std::max<std::size_t>(options_.rows / 8, 1));
    for (std::size_t i = run_.messages.size() - count; i < run_.messages.size(); ++i) {
      const WatchedMessage& m = run_.messages[i];
      if (m.error && run_.failed) continue;  // said at the end
      lines.push_back({cat(m.error ? "error " : "warning ", clock_of(m.time), " ",
                           m.rank > 0 ? cat("rank ", m.rank, ": ") : "", clean(m.text)),
                       m.error ? Tone::bad : Tone::doubtful});
    }
    return lines;
  }

  const WatchedRun& run_;
  const WatchMoment& moment_;
  const ViewOptions& options_;
};

std::string coloured(const Line& line) {
  switch (line.tone) {
    case Tone::good:
      return cat("\033[32m", line.text, "\033[m");
    case Tone::doubtful:
      return cat("\033[33m", line.text, "\033[m");
    case Tone::bad:
      return cat("\033[31m", line.text, "\033[m");
    default:
      return line.text;
  }
}

}  // namespace

std::string state_of(const WatchedRun& run, const WatchMoment& moment) {
  if (run.end) {
    if (run.failed) return "failed";
    return run.signal != 0 ? cat("stopped by signal ", run.signal) : "done";
  }
  if (run.steps.empty() && !run.start)
    return moment.has_folder ? "waiting: no training.jsonl yet" : "waiting: no such directory yet";
  const std::string since = short_duration(silence(run, moment));
  if (is_silent(run, moment)) return "silent for " + since;
  return has_stepped(run) ? cat("running, last step ", since, " ago")
                          : cat("started ", since, " ago, no step yet");
}

std::vector<std::string> view(const std::string& name, const WatchedRun& run, const WatchMoment& moment,
                              const ViewOptions& options) {
  std::vector<std::string> text;
  for (Line& line : View(run, moment, options).lines(name)) {
    line.text = cut(line.text, options.columns);
    line.text.erase(line.text.find_last_not_of(' ') + 1);
    text.push_back(options.colour ? coloured(line) : line.text);
  }
  return text;
}

}  // namespace nemocube
