#include "train/look/report/read_log.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/files/regular_file.h"
#include "train/logging/jsonl.h"

namespace nemocube::run_report {
namespace {

using Line = nlohmann::json;

constexpr std::size_t most_listed = 20, most_starts = 1000;
constexpr std::int64_t most_depths = 1024;  // as recipes may ask for
constexpr double most_step = 1e15, longest_step = 1e12, largest = 1e200;

/// Fields of training.jsonl that are drawn, besides those of mtp_depth().
constexpr std::array<const char*, 10> curve_fields{
    "loss", "grad_norm", "lr", "mem", "tps", "mfu", "aux_loss", "seq_aux_loss", "global_aux_loss", "z_loss"};

std::optional<double> number(const Line& line, const char* field) {
  const auto at = line.find(field);
  if (at == line.end() || !at->is_number()) return std::nullopt;
  const double value = at->get<double>();
  if (!(std::abs(value) <= largest)) return std::nullopt;
  return value;
}

std::string text(const Line& line, const char* field) {
  const auto at = line.find(field);
  return at != line.end() && at->is_string() ? at->get<std::string>() : "";
}

/// The step of a whole line.
std::optional<double> step_of(const Line& line) {
  if (!line.is_object()) return std::nullopt;
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number_integer()) return std::nullopt;
  const double value = step->get<double>();
  return value >= 0 && value <= most_step ? std::optional(value) : std::nullopt;
}

/// Calls fn(line, step) for each whole line; returns the number of others.
std::int64_t for_each_record(const std::filesystem::path& path, const auto& fn) {
  std::int64_t damaged = 0;
  for_each_file_line(path, most_line_bytes, [&](std::string_view bytes, std::int64_t) {
    const Line line = log_fields(bytes, 2);
    if (const auto step = step_of(line))
      fn(line, *step);
    else
      ++damaged;
  });
  return damaged;
}

void take_times(TrainingLog& log, const Line& line, double step) {
  const auto tokens = number(line, "num_tokens_per_step"), rate = number(line, "tps");
  if (!tokens || !rate || !(*tokens > 0) || !(*rate > 0)) return;
  const double seconds = *tokens / *rate;
  if (!(seconds <= longest_step)) return;
  log.seconds += seconds;
  log.tokens += *tokens;
  ++log.timed_steps;
  const auto data = number(line, "data_seconds"), communication = number(line, "communication_seconds");
  log.has_data_times = log.has_data_times || data;
  log.has_communication_times = log.has_communication_times || communication;
  log.times.add(step, {seconds, data.value_or(0), communication.value_or(0),
                       number(line, "communication_waiting_seconds").value_or(0)});
}

/// The numbers of a list; nothing where it is none, is empty, or holds something else.
std::vector<double> numbers(const Line& list) {
  std::vector<double> values;
  if (!list.is_array()) return values;
  for (const Line& value : list) {
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= largest)) return {};
    values.push_back(value.get<double>());
  }
  return values;
}

/// Lines whose blocks or experts are others than in the first line are left out.
void take_experts(ExpertLog& log, const Line& line, double step) {
  const auto imbalance = line.find("expert_imbalance"), tokens = line.find("expert_tokens");
  if (imbalance == line.end() || tokens == line.end() || !tokens->is_array()) return;
  const std::vector<double> values = numbers(*imbalance);
  if (values.empty() || values.size() != tokens->size()) return;
  std::vector<std::vector<double>> counts;
  for (const Line& block : *tokens) {
    counts.push_back(numbers(block));
    if (counts.back().empty()) return;
  }
  if (log.tokens.empty())
    for (const auto& block : counts) log.tokens.emplace_back(block.size());
  const auto size = [](const std::vector<double>& block) { return block.size(); };
  if (!std::ranges::equal(counts, log.tokens, {}, size, size)) return;
  for (std::size_t i = 0; i < counts.size(); ++i)
    for (std::size_t k = 0; k < counts[i].size(); ++k) log.tokens[i][k] += counts[i][k];
  log.imbalance.add(step, values);
}

void take(TrainingLog& log, const Line& line, double step) {
  for (const char* field : curve_fields)
    if (const auto value = number(line, field)) log.curves[field].add(step, *value);
  for (const auto& item : line.items())
    if (mtp_depth(item.key()))
      if (const auto value = number(line, item.key().c_str())) log.curves[item.key()].add(step, *value);
  if (line.contains("loss") && !number(line, "loss")) {
    ++log.not_finite_steps;
    if (log.not_finite.size() < most_listed) log.not_finite.push_back(step);
  }
  const std::string timestamp = text(line, "timestamp");
  if (log.lines++ == 0) {
    log.first_step = static_cast<std::int64_t>(step);
    log.first_timestamp = timestamp;
  }
  log.last_step = static_cast<std::int64_t>(step);
  log.last_timestamp = timestamp;
  if (const auto epoch = number(line, "epoch"); epoch && *epoch >= 0 && *epoch <= most_step)
    log.last_epoch = static_cast<std::int64_t>(*epoch);
  if (const auto skipped = number(line, "skipped_steps"); skipped && *skipped >= 0 && *skipped <= most_step)
    log.skipped_steps = static_cast<std::int64_t>(*skipped);
  if (line.contains("version") && log.starts.size() < most_starts)
    log.starts.push_back({step, timestamp, text(line, "version"), text(line, "layout")});
  take_times(log, line, step);
  take_experts(log.experts, line, step);
}

}  // namespace

std::optional<std::int64_t> mtp_depth(std::string_view field) {
  constexpr std::string_view before = "mtp_loss_";
  if (!field.starts_with(before)) return std::nullopt;
  const std::string_view digits = field.substr(before.size());
  std::int64_t depth = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), depth);
  const bool known = error == std::errc() && depth >= 1 && depth <= most_depths && cat(depth) == digits;
  return known ? std::optional(depth) : std::nullopt;
}

void Curve::add(double step, double value) {
  sum += value;
  points.add({step, value});
  means.add(step, {value});
}

TrainingLog read_training_log(const std::filesystem::path& path) {
  TrainingLog log;
  log.damaged = for_each_record(path, [&](const Line& line, double step) { take(log, line, step); });
  return log;
}

ValidationLog read_validation_log(const std::filesystem::path& path) {
  ValidationLog log;
  log.damaged = for_each_record(path, [&](const Line& line, double step) {
    for (const char* field : {"val_loss", "exact_match", "f1"})
      if (const auto value = number(line, field)) log.curves[field].add(step, *value);
  });
  return log;
}

}  // namespace nemocube::run_report
