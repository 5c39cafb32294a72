#include "train/logging/jsonl.h"

#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"
#include "data/files/regular_file.h"
#include "data/json/atomic_file.h"

namespace nemocube {
namespace {

std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_number(double value) {
  if (std::isnan(value)) return quoted("NaN");
  if (std::isinf(value)) return quoted(value > 0 ? "Infinity" : "-Infinity");
  std::array<char, 40> buffer;
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr};
}

std::string json_list(const auto& values, auto text_of) {
  std::string text = "[";
  for (const auto& value : values) text += (text.size() > 1 ? ", " : "") + text_of(value);
  return text + "]";
}

// The results of a step, without its clocks and rates.
nlohmann::json results(const std::string& line) {
  const auto record = log_fields(line);
  nlohmann::json kept = nlohmann::json::object();
  if (!record.is_object()) return line;  // a damaged line equals only the same text
  for (const char* key : {"step", "epoch", "loss", "grad_norm", "lr", "num_label_tokens", "skipped_steps",
                          "val_loss", "exact_match", "f1"})
    if (const auto field = record.find(key); field != record.end()) kept[key] = *field;
  return kept;
}

bool precedes(std::string_view line, std::int64_t first_step) {
  const auto record = log_fields(line);
  if (!record.is_object()) return false;
  const auto step = record.find("step");
  return step != record.end() && step->is_number_integer() && step->get<std::int64_t>() < first_step;
}

}  // namespace

void JsonLine::key(std::string_view name) {
  if (text_.size() > 1) text_ += ", ";
  text_ += quoted(name);
  text_ += ": ";
}

JsonLine& JsonLine::add(std::string_view name, double value) {
  key(name);
  text_ += json_number(value);
  return *this;
}

JsonLine& JsonLine::add(std::string_view name, std::int64_t value) {
  key(name);
  text_ += std::to_string(value);
  return *this;
}

JsonLine& JsonLine::add(std::string_view name, bool value) {
  key(name);
  text_ += value ? "true" : "false";
  return *this;
}

JsonLine& JsonLine::add(std::string_view name, std::string_view text) {
  key(name);
  text_ += quoted(text);
  return *this;
}

JsonLine& JsonLine::add(std::string_view name, const std::optional<double>& value) {
  if (value) return add(name, *value);
  key(name);
  text_ += "null";
  return *this;
}

JsonLine& JsonLine::add(std::string_view name, std::span<const double> values) {
  key(name);
  text_ += json_list(values, json_number);
  return *this;
}

JsonLine& JsonLine::add(std::string_view name, std::span<const std::vector<std::int64_t>> rows) {
  key(name);
  text_ += json_list(rows, [](const std::vector<std::int64_t>& row) {
    return json_list(row, [](std::int64_t value) { return std::to_string(value); });
  });
  return *this;
}

nlohmann::json log_fields(std::string_view line, int levels) {
  using Event = nlohmann::json::parse_event_t;
  constexpr int deepest = 4;  // no log has lists so deep
  const auto kept = [levels](int depth, Event event, const nlohmann::json&) {
    require(depth <= deepest, "a damaged line");
    if (event == Event::array_start) return depth > 0 && depth <= levels;
    return event != Event::object_start || depth <= levels;
  };
  try {
    return nlohmann::json::parse(line, kept, false);
  } catch (const Error&) {
    return nlohmann::json::value_t::discarded;
  }
}

void JsonlWriter::append(const JsonLine& line) {
  if (!file_.has_its_name()) {
    require(is_run_log(path()), path().string(),
            ": was replaced while the run goes on, by what is no log of a training run");
    file_.reopen();
    log_warning(path().string(),
                ": was removed, renamed or replaced while the run goes on; it goes on in a new file");
  }
  file_.append(line.text() + "\n");
}

bool is_run_log(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_fifo(status) || std::filesystem::is_socket(status)) return false;
  if (!std::filesystem::is_regular_file(status)) return true;  // whoever opens it will say more
  constexpr std::string_view beginning = "{\"step\": ";
  std::string head(beginning.size(), '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(in.gcount()));
  return beginning.starts_with(head);  // a crash may have left less than a line
}

std::int64_t copy_log(const std::filesystem::path& from, const std::filesystem::path& to,
                      std::int64_t first_step) {
  std::string kept;
  std::int64_t dropped = 0;
  for_each_file_line(from, most_line_bytes, [&](std::string_view line, std::int64_t) {
    if (precedes(line, first_step))
      kept += cat(line, "\n");
    else
      ++dropped;
  });
  write_file_atomically(to, kept);
  return dropped;
}

std::filesystem::path free_name(const std::filesystem::path& path) {
  for (int i = 1;; ++i) {
    std::filesystem::path name = path;
    name += cat(".", i);
    if (std::error_code error; !std::filesystem::exists(name, error)) return name;
  }
}

bool is_repeated(const std::filesystem::path& log, const std::filesystem::path& newer) {
  std::error_code error;
  for (const auto& file : {log, newer})  // reading a FIFO would wait, reading a device might not end
    if (std::filesystem::is_other(file, error)) return false;
  std::ifstream a(log, std::ios::binary), b(newer, std::ios::binary);
  if (!a.good()) return false;
  for (std::string old_line, new_line; std::getline(a, old_line);)
    if (!std::getline(b, new_line) || results(old_line) != results(new_line)) return false;
  return !a.bad();
}

std::int64_t start_log(const std::filesystem::path& path, std::int64_t first_step) {
  expect(first_step >= 0, "start_log: step ", first_step);
  std::error_code error;
  if (!std::filesystem::exists(path)) return 0;
  if (first_step > 0) return copy_log(path, path, first_step);
  if (std::filesystem::file_size(path, error) == 0 || error) return 0;
  const std::filesystem::path kept = free_name(path);
  std::filesystem::rename(path, kept, error);
  require(!error, path.string(), ": cannot keep the log of an earlier run as ", kept.filename().string(),
          ": ", error.message());
  return 0;
}

}  // namespace nemocube
