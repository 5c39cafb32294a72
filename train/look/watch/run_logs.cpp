#include "train/look/watch/run_logs.h"

#include <sys/stat.h>

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "data/files/link.h"
#include "train/logging/run_history.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view log_ending = ".jsonl", branch_mark = ".branch_";

/// N of "training.jsonl.branch_N".
std::optional<std::int64_t> branch_of(std::string_view name) {
  const std::string head = cat("training", log_ending, branch_mark);
  if (!name.starts_with(head)) return std::nullopt;
  name.remove_prefix(head.size());
  std::int64_t number = 0;
  const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (bad != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return number;
}

/// NAME of "validation_NAME.jsonl", "default" of "validation.jsonl", with the ending of a branch behind.
std::optional<std::string> validation_set_of(std::string_view name, std::string_view branch) {
  const std::string ending = cat(log_ending, branch);
  constexpr std::string_view head = "validation";
  if (!name.starts_with(head) || !name.ends_with(ending)) return std::nullopt;
  name.remove_prefix(head.size());
  name.remove_suffix(ending.size());
  if (name.empty()) return "default";
  if (name.size() < 2 || name[0] != '_') return std::nullopt;
  return std::string(name.substr(1));
}

fs::file_time_type written_at(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  return error ? fs::file_time_type::min() : time;
}

}  // namespace

RunLogs::RunLogs(fs::path folder, std::size_t most_steps, std::int64_t most_history)
    : folder_(std::move(folder)),
      most_history_(most_history),
      run_(most_steps),
      training_(folder_ / "training.jsonl", most_history),
      history_(folder_ / history_file, most_history) {}

RunLogs::Names RunLogs::find_names() const {
  Names names;
  std::error_code error;
  std::vector<std::string> all;
  const fs::file_status status = fs::status(folder_, error);
  require(!fs::exists(status) || fs::is_directory(status), folder_.string(),
          ": want the directory of a run (checkpoint.checkpoint_dir of its recipe), which is no directory");
  if (!fs::exists(status)) return names;
  fs::directory_iterator entries(folder_, error);
  require(!error, folder_.string(), ": cannot be read: ", error.message());
  for (const fs::directory_iterator end; !error && entries != end; entries.increment(error))
    all.push_back(entries->path().filename().string());
  std::int64_t newest = -1;
  for (const std::string& name : all)
    if (const auto number = branch_of(name);
        number && *number > newest && written_at(folder_ / name) >= written_at(folder_ / "training.jsonl")) {
      newest = *number;
      names.branch = cat(branch_mark, *number);
    }
  for (const std::string& name : all)
    if (const auto set = validation_set_of(name, names.branch)) names.validations[*set] = name;
  return names;
}

void RunLogs::follow(const Names& names) {
  const fs::path training = folder_ / cat("training", log_ending, names.branch);
  if (training != training_.path()) {
    training_ = LogTail(training, most_history_);
    run_.forget_training();
    for (const auto& [set, log] : validations_) run_.forget_validation(set);
    validations_.clear();
    run_.branch = names.branch.empty() ? "" : training.filename().string();
  }
  for (const auto& [set, name] : names.validations)
    if (validations_.size() < WatchedRun::most_sets)
      validations_.try_emplace(set, folder_ / name, most_history_);
}

// Where history.jsonl does not name it, as in runs of versions that had none.
void RunLogs::look_at_latest() {
  const fs::path latest = linked_name(folder_ / "LATEST");
  struct stat link {};
  if (latest.empty() || ::lstat((folder_ / "LATEST").c_str(), &link) != 0) return;
  if (run_.checkpoint && run_.checkpoint->name == latest.filename().string()) return;
  run_.checkpoint = {latest.filename().string(), static_cast<double>(link.st_mtime), {}, {}};
}

bool RunLogs::poll() {
  follow(find_names());
  bool more = history_.poll(
      [&](std::string_view line) {
        run_.history_line(line);
        ++lines_read_;
      },
      [&] { run_.forget_history(); });
  more |= training_.poll(
      [&](std::string_view line) {
        run_.training_line(line);
        ++lines_read_;
      },
      [&] { run_.forget_training(); });
  for (auto& [set, log] : validations_)
    more |= log.poll([&](std::string_view line) { run_.validation_line(set, line); },
                     [&] { run_.forget_validation(set); });
  look_at_latest();
  return more;
}

}  // namespace nemocube
