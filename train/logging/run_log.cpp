#include "train/logging/run_log.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/version.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr const char* branch_mark = ".branch_";

struct NumberedLog {
  fs::path path;  // without what follows the log's name
  std::int64_t number = 0;
};

// The files LOG<mark><number> of a folder, LOG being the name of a log of a run.
std::map<fs::path, NumberedLog> numbered(const fs::path& folder, std::string_view mark) {
  std::map<fs::path, NumberedLog> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const std::size_t at = name.find(".jsonl");
    if (at == name.npos || !(name.starts_with("training.") || name.starts_with("validation"))) continue;
    const std::string log = name.substr(0, at + 6), rest = name.substr(at + 6);
    std::int64_t number = 0;
    if (!rest.starts_with(mark)) continue;
    const char *begin = rest.data() + mark.size(), *end = rest.data() + rest.size();
    const auto [stop, bad] = std::from_chars(begin, end, number);
    if (bad == std::errc() && stop == end && number > 0) found[entry.path()] = {folder / log, number};
  }
  return found;
}

// Moves `log` to abandoned/NAME beside it.
void abandon(const fs::path& log, const fs::path& name) {
  const fs::path folder = log.parent_path() / "abandoned";
  std::error_code error;
  fs::create_directories(folder, error);
  const fs::path place = fs::exists(folder / name) ? free_name(folder / name) : folder / name;
  if (!error) fs::rename(log, place, error);
  require(!error, log.string(), ": cannot be kept as ", place.string(), ": ", error.message());
  log_info(log.string(), " is that of a branch that no run goes on from: moved to ", place.string());
}

}  // namespace

JsonLine training_line(const TrainingRecord& r, std::chrono::system_clock::time_point time) {
  expect(r.ranks > 0, "training_line: ", r.ranks, " ranks");
  JsonLine line;
  line.add("step", r.step).add("epoch", r.epoch).add("timestamp", utc_timestamp(time)).add("loss", r.loss);
  line.add("grad_norm", r.grad_norm)
      .add("lr", r.lr)
      .add("mem", gib(r.peak_bytes))
      .add("tps", r.per_second(r.tokens));
  line.add("tps_per_gpu", r.tokens_per_second_and_rank()).add("mfu", r.mfu);
  line.add("num_tokens_per_step", r.tokens).add("num_label_tokens", r.label_tokens);
  line.add("positions_per_second", r.per_second(r.positions));
  line.add("content_tokens_per_second", r.per_second(r.content_tokens));
  line.add("label_tokens_per_second", r.per_second(r.label_tokens));
  line.add("samples_per_second", r.per_second(r.samples));
  line.add("skipped", r.skipped).add("skipped_steps", r.skipped_steps);
  for (std::size_t k = 0; k < r.mtp_losses.size(); ++k) line.add(cat("mtp_loss_", k + 1), r.mtp_losses[k]);
  for (const auto& [field, value] : r.auxiliary_losses) line.add(field, value);
  if (!r.experts.tokens.empty())
    line.add("expert_tokens", r.experts.tokens).add("expert_imbalance", r.experts.imbalance);
  if (r.times) {
    line.add("data_seconds", r.times->data);
    if (r.times->communication) line.add("communication_seconds", r.times->communication);
    if (r.times->waiting) line.add("communication_waiting_seconds", r.times->waiting);
  }
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

RunLog::RunLog(fs::path folder, std::span<const std::string> validation_sets, const LogStart& start,
               WallClock clock)
    : folder_(std::move(folder)), wanted_{"training.jsonl"}, start_(start), clock_(std::move(clock)) {
  for (const std::string& name : validation_sets) wanted_.push_back(file_name(name));
  for (const std::string& name : wanted_)
    require(is_run_log(folder_ / name), (folder_ / name).string(),
            ": is in the way and no log of a training run; want another checkpoint.checkpoint_dir");
  complete_branches(folder_, start_.serial - 1);
  if (start_.tensorboard)
    tensorboard_.emplace(*start_.tensorboard,
                         TensorboardLog::Start{start_.first_step, start_.consumed_samples, start_.serial,
                                               start_.leaves_branch},
                         clock_);
}

std::string RunLog::file_name(const std::string& validation_set) {
  return validation_set == "default" ? "validation.jsonl" : cat("validation_", validation_set, ".jsonl");
}

std::vector<fs::path> RunLog::logs() const {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    const bool wanted = std::ranges::find(wanted_, name) != wanted_.end();
    const bool other = name.starts_with("validation_") && name.ends_with(".jsonl");
    if (wanted || (other && is_run_log(entry.path()))) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

// A kill between two of these renames leaves the rest to the next call, which finds NAME missing or old.
void RunLog::complete_branches(const fs::path& folder, std::int64_t serial) {
  for (const auto& [path, log] : numbered(folder, branch_mark)) {
    if (log.number > serial) continue;
    if (fs::exists(log.path)) abandon(log.path, log.path.filename());
    std::error_code error;
    fs::rename(path, log.path, error);
    require(!error, path.string(), ": cannot be renamed to ", log.path.string(), ": ", error.message());
  }
}

void RunLog::begin() {
  begun_ = true;
  std::error_code ignored;
  for (const auto& [path, log] : numbered(folder_, branch_mark)) {  // of a run that saved no checkpoint
    bool known =
        is_repeated(path, log.path) || is_repeated(path, folder_ / "abandoned" / log.path.filename());
    for (const auto& [kept, of] : numbered(folder_ / "abandoned", "."))
      known = known || (of.path.filename() == log.path.filename() && is_repeated(path, kept));
    if (known)
      fs::remove(path, ignored);
    else
      abandon(path, log.path.filename());
  }
  for (const auto& [path, log] : numbered(folder_, ".")) {
    const bool empty = fs::file_size(path, ignored) == 0;
    if (!is_run_log(path) || (!empty && !is_repeated(path, log.path))) continue;
    log_debug(path.string(), ": removed, as ", log.path.string(), " says the same");
    fs::remove(path, ignored);
  }
  if (start_.leaves_branch) {
    ending_ = cat(branch_mark, start_.serial);
    for (const fs::path& path : logs()) copy_log(path, path.string() + ending_, start_.first_step);
    log_info("until the first checkpoint, this run logs to ", (folder_ / "training.jsonl").string(), ending_,
             "; training.jsonl stays that of the branch to be left");
    return;
  }
  for (const fs::path& path : logs()) {
    const std::int64_t dropped = start_log(path, start_.first_step);
    if (dropped > 0)
      log_info(path.string(), ": dropped ", dropped, dropped == 1 ? " line" : " lines",
               " of an earlier run from step ", start_.first_step, " on");
  }
}

void RunLog::keep_branch() {
  if (tensorboard_) tensorboard_->keep_branch();
  if (ending_.empty()) return;
  files_.clear();
  ending_.clear();
  complete_branches(folder_, start_.serial);
}

JsonlWriter& RunLog::file(const std::string& name) {
  if (!begun_) begin();
  if (const auto known = files_.find(name); known != files_.end()) return known->second;
  return files_.emplace(name, JsonlWriter(folder_ / (name + ending_))).first->second;
}

void RunLog::training(const TrainingRecord& record) {
  JsonlWriter& log = file("training.jsonl");
  JsonLine line = training_line(record, clock_());
  if (std::exchange(first_line_, false)) {
    line.add("version", version());
    if (!start_.layout.empty()) line.add("layout", start_.layout);
  }
  log.append(line);
  if (tensorboard_) tensorboard_->training(record);
}

void RunLog::validation(const std::string& name, const ValidationRecord& record) {
  file(file_name(name)).append(validation_line(record, clock_()));
  if (tensorboard_) tensorboard_->validation(name, record);
}

}  // namespace nemocube
