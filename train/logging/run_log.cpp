#include "train/logging/run_log.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "core/error.h"
#include "core/log.h"

namespace nemocube {
namespace {

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

std::optional<double> rate(std::int64_t count, double seconds) {
  if (!(seconds > 0)) return std::nullopt;
  return static_cast<double>(count) / seconds;
}

}  // namespace

std::string utc_timestamp(std::chrono::system_clock::time_point time) {
  using namespace std::chrono;
  const auto milli = floor<milliseconds>(time);
  const auto day = floor<days>(milli);
  const year_month_day date(day);
  const hh_mm_ss clock(milli - day);
  std::array<char, 48> text;
  const int size = std::snprintf(
      text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ", static_cast<int>(date.year()),
      static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
      static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
      static_cast<int>(clock.seconds().count()), static_cast<int>(clock.subseconds().count()));
  return {text.data(), static_cast<std::size_t>(size)};
}

JsonLine training_line(const TrainingRecord& r, std::chrono::system_clock::time_point time) {
  expect(r.ranks > 0, "training_line: ", r.ranks, " ranks");
  const auto tps = rate(r.tokens, r.seconds);
  JsonLine line;
  line.add("step", r.step).add("epoch", r.epoch).add("timestamp", utc_timestamp(time)).add("loss", r.loss);
  line.add("grad_norm", r.grad_norm).add("lr", r.lr).add("mem", gib(r.peak_bytes)).add("tps", tps);
  line.add("tps_per_gpu", rate(r.tokens, r.seconds * r.ranks)).add("mfu", r.mfu);
  line.add("num_tokens_per_step", r.tokens).add("num_label_tokens", r.label_tokens);
  line.add("positions_per_second", rate(r.positions, r.seconds));
  line.add("content_tokens_per_second", rate(r.content_tokens, r.seconds));
  line.add("label_tokens_per_second", rate(r.label_tokens, r.seconds));
  line.add("samples_per_second", rate(r.samples, r.seconds));
  line.add("skipped", r.skipped).add("skipped_steps", r.skipped_steps);
  for (const auto& [field, value] : r.auxiliary_losses) line.add(field, value);
  return line;
}

JsonLine validation_line(const ValidationRecord& r, std::chrono::system_clock::time_point time) {
  JsonLine line;
  line.add("step", r.step).add("epoch", r.epoch).add("timestamp", utc_timestamp(time));
  line.add("val_loss", r.val_loss).add("lr", r.lr).add("num_label_tokens", r.label_tokens);
  line.add("mem", gib(r.peak_bytes));
  if (r.exact_match) line.add("exact_match", r.exact_match);
  if (r.f1) line.add("f1", r.f1);
  return line;
}

RunLog::RunLog(std::filesystem::path folder, std::span<const std::string> validation_sets,
               std::int64_t first_step, WallClock clock)
    : folder_(std::move(folder)), clock_(std::move(clock)) {
  std::vector<std::filesystem::path> old{folder_ / "training.jsonl"};
  for (const std::string& name : validation_sets) old.push_back(folder_ / file_name(name));
  for (const auto& path : old)
    require(is_run_log(path), path.string(),
            ": is in the way and no log of a training run; want another checkpoint.checkpoint_dir");
  // Before the first line of any log, so that none of an earlier run is left beside those of this one.
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    const bool log = name.starts_with("validation_") && name.ends_with(".jsonl") && is_run_log(entry.path());
    if (log && std::ranges::find(old, entry.path()) == old.end()) old.push_back(entry.path());
  }
  for (const auto& path : old) {
    const std::int64_t dropped = start_log(path, first_step);
    if (dropped > 0)
      log_info(path.string(), ": dropped ", dropped, " lines of an earlier run from step ", first_step,
               " on");
  }
  file("training.jsonl");
}

std::string RunLog::file_name(const std::string& validation_set) {
  return validation_set == "default" ? "validation.jsonl" : cat("validation_", validation_set, ".jsonl");
}

JsonlWriter& RunLog::file(const std::string& name) {
  if (const auto known = files_.find(name); known != files_.end()) return known->second;
  return files_.emplace(name, JsonlWriter(folder_ / name)).first->second;
}

void RunLog::training(const TrainingRecord& record) {
  file("training.jsonl").append(training_line(record, clock_()));
}

void RunLog::validation(const std::string& name, const ValidationRecord& record) {
  file(file_name(name)).append(validation_line(record, clock_()));
}

}  // namespace nemocube
