#include "train/logging/event_files.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/host_name.h"
#include "core/log.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view event_prefix = "events.out.tfevents.", event_branch_prefix = "branch_";

/// The number that `text` begins with, and what follows the dot behind it; nothing for other text.
struct NumberedRest {
  std::int64_t number;
  std::string rest;
};
std::optional<NumberedRest> number_and_rest(std::string_view text) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop == end || *stop != '.' || number < 0) return std::nullopt;
  return NumberedRest{number, std::string(stop + 1, end)};
}

void rename_events(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::create_directories(to.parent_path(), error);
  if (!error) fs::rename(from, to, error);
  require(!error, from.string(), ": cannot be renamed to ", to.string(), ": ", error.message());
}

}  // namespace

EventFiles::EventFiles(fs::path folder, Start start, WallClock clock)
    : folder_(std::move(folder)), start_(start), clock_(std::move(clock)) {}

double EventFiles::now() const { return std::chrono::duration<double>(clock_().time_since_epoch()).count(); }

// SECONDS is the time of the start, or what sorts behind the files that are there, should a clock have gone
// back.
std::string EventFiles::new_ending() const {
  auto seconds = static_cast<std::int64_t>(now());
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(event_prefix)) continue;
    if (const auto found = number_and_rest(std::string_view(name).substr(event_prefix.size())))
      seconds = std::max(seconds, found->number + 1);
  }
  std::string digits = std::to_string(seconds);
  if (digits.size() < 10) digits.insert(0, 10 - digits.size(), '0');
  return cat(digits, ".", host_name("localhost"), ".", ::getpid(), ".0");
}

/// Files of branches up to `last_serial` belong to checkpoints that were saved.
void EventFiles::settle_branches(std::int64_t last_serial) const {
  std::vector<fs::path> branches;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error))
    if (entry.path().filename().string().starts_with(event_branch_prefix)) branches.push_back(entry.path());
  std::ranges::sort(branches);
  for (const fs::path& path : branches) {
    const std::string name = path.filename().string();
    const auto branch = number_and_rest(std::string_view(name).substr(event_branch_prefix.size()));
    if (!branch) continue;
    const fs::path folder = branch->number <= last_serial ? folder_ : folder_ / "abandoned";
    rename_events(path, folder / cat(event_prefix, branch->rest));
  }
}

void EventFiles::open() {
  settle_branches(start_.serial - 1);
  ending_ = new_ending();
  file_.emplace(folder_ / (start_.leaves_branch ? cat(event_branch_prefix, start_.serial, ".", ending_)
                                                : cat(event_prefix, ending_)));
  file_->append(version_record(now()) + start_record(now(), start_.first_step));
}

void EventFiles::add(std::int64_t step, const Scalars& scalars) {
  if (scalars.empty()) return;
  if (!file_) open();
  if (!file_->has_its_name()) {
    file_->reopen();
    log_warning(file_->path().string(),
                ": was removed, renamed or replaced while the run goes on; it goes on in a new file");
    file_->append(version_record(now()));
  }
  file_->append(scalars_record(now(), step, scalars));
}

void EventFiles::keep_branch() {
  if (!std::exchange(start_.leaves_branch, false) || !file_) return;
  const fs::path branch = file_->path(), name = folder_ / cat(event_prefix, ending_);
  const bool there = file_->has_its_name();
  file_.reset();  // what a user has removed begins anew with the next event
  if (!there) return;
  rename_events(branch, name);
  file_.emplace(name);
}

}  // namespace nemocube
