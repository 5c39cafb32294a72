#include "train/look/watch/watched_run.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "train/logging/jsonl.h"
#include "train/logging/wall_clock.h"

namespace nemocube {
namespace {

using LogLine = nlohmann::json;

std::optional<LogLine> parsed(std::string_view line) {
  LogLine json = log_fields(line);
  if (!json.is_object()) return std::nullopt;
  return json;
}

/// Logs write numbers that are not finite as strings (docs/logs.md).
std::optional<double> number_in(const LogLine& line, const char* key) {
  const auto field = line.find(key);
  if (field == line.end()) return std::nullopt;
  if (field->is_number()) return field->get<double>();
  if (*field == "NaN") return std::nan("");
  if (*field == "Infinity") return std::numeric_limits<double>::infinity();
  if (*field == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

constexpr double largest = 1e15;  // of the numbers that are computed with; no run has larger ones

std::optional<double> finite_in(const LogLine& line, const char* key) {
  const auto value = number_in(line, key);
  return value && std::abs(*value) <= largest ? value : std::nullopt;
}

std::optional<std::int64_t> count_in(const LogLine& line, const char* key) {
  const auto field = line.find(key);
  if (field == line.end() || !field->is_number_integer()) return std::nullopt;
  const auto value = field->get<std::int64_t>();
  return value >= 0 && value <= static_cast<std::int64_t>(largest) ? std::optional(value) : std::nullopt;
}

std::string text_in(const LogLine& line, const char* key) {
  const auto field = line.find(key);
  return field != line.end() && field->is_string() ? field->get<std::string>() : "";
}

double time_in(const LogLine& line) { return seconds_of_timestamp(text_in(line, "timestamp")).value_or(0); }

WatchedStart start_in(const LogLine& line) {
  WatchedStart s;
  s.time = time_in(line);
  s.first_step = count_in(line, "step").value_or(0);
  s.total_steps = count_in(line, "total_steps").value_or(0);
  s.parameters = count_in(line, "parameters").value_or(0);
  s.ranks = count_in(line, "ranks").value_or(1);
  s.dtype = text_in(line, "dtype");
  s.layout = text_in(line, "layout");
  s.host = text_in(line, "host");
  s.version = text_in(line, "version");
  return s;
}

}  // namespace

std::optional<double> WatchedStep::seconds() const {
  if (!tokens || !tokens_per_second || !(*tokens_per_second > 0)) return std::nullopt;
  return *tokens / *tokens_per_second;
}

void WatchedRun::training_line(std::string_view text) {
  const auto line = parsed(text);
  if (!line) return;
  const auto step = count_in(*line, "step");
  if (!step) return;
  WatchedStep s;
  s.step = *step;
  s.epoch = count_in(*line, "epoch").value_or(0);
  s.time = time_in(*line);
  s.loss = number_in(*line, "loss");
  s.grad_norm = number_in(*line, "grad_norm");
  s.lr = number_in(*line, "lr");
  s.mem = finite_in(*line, "mem");
  s.tokens_per_second = finite_in(*line, "tps");
  s.tokens_per_second_and_rank = finite_in(*line, "tps_per_gpu");
  s.mfu = finite_in(*line, "mfu");
  s.tokens = finite_in(*line, "num_tokens_per_step");
  s.skipped_steps = count_in(*line, "skipped_steps").value_or(0);
  while (!steps.empty() && steps.back().step >= s.step) steps.pop_back();  // an earlier start got further
  steps.push_back(s);
  if (steps.size() > most_steps_) steps.pop_front();
  if (line->contains("version")) {  // the first line of a start
    version = text_in(*line, "version");
    layout = text_in(*line, "layout");
  }
}

void WatchedRun::validation_line(const std::string& set, std::string_view text) {
  const auto line = parsed(text);
  if (!line || (validations.size() >= most_sets && !validations.contains(set))) return;
  const auto step = count_in(*line, "step");
  const auto loss = number_in(*line, "val_loss");
  if (!step || !loss) return;
  WatchedValidation& v = validations[set];
  v.before = v.last;
  v.last = {*step, *loss};
  if (std::isfinite(*loss) && (!v.lowest || *loss < v.lowest->loss)) v.lowest = v.last;
}

void WatchedRun::history_line(std::string_view text) {
  const auto line = parsed(text);
  if (!line) return;
  const std::string event = text_in(*line, "event");
  if (event == "start") {
    start = start_in(*line);
    end.reset();
    messages.clear();
  } else if (event == "checkpoint") {
    checkpoint = {text_in(*line, "name"), time_in(*line), finite_in(*line, "bytes"),
                  finite_in(*line, "seconds")};
  } else if (event == "warning" || event == "error") {
    messages.push_back(
        {event == "error", time_in(*line), count_in(*line, "rank").value_or(0), text_in(*line, "text")});
    if (messages.size() > most_messages) messages.pop_front();
  }
  if (event != "end" && event != "error") return;
  end = text_in(*line, "text");
  failed = event == "error";
  signal = static_cast<int>(count_in(*line, "signal").value_or(0));
}

void WatchedRun::forget_training() {
  steps.clear();
  layout.clear();
  version.clear();
}

void WatchedRun::forget_history() {
  start.reset();
  end.reset();
  messages.clear();
  checkpoint.reset();
}

}  // namespace nemocube
