#include "train/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/files/link.h"
#include "data/json/json.h"
#include "train/checkpoint/checksums.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr const char *losses_file = "losses.json", *abandoned = "abandoned", *latest_link = "LATEST",
                     *lowest_link = "LOWEST_VAL", *pruned = "pruned_";

std::vector<fs::path> entries_of(const fs::path& dir) {
  std::vector<fs::path> entries;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) entries.push_back(entry.path());
  return entries;
}

bool is_whole(const fs::path& checkpoint) { return fs::exists(checkpoint / "state.json"); }

// Null for a damaged state.json, 0 for one written before there were serials.
std::optional<std::int64_t> serial_of(const fs::path& checkpoint) {
  try {
    const auto origin = read_origin(checkpoint / "state.json");
    return origin ? origin->serial : 0;
  } catch (const Error&) {
    return std::nullopt;  // load() says what is wrong, if this is the one to load
  }
}

// Empty where there is no losses.json. Throws Error for a damaged one.
Json read_losses(const fs::path& checkpoint) {
  const fs::path file = checkpoint / losses_file;
  if (!fs::exists(file)) return Json::object();
  if (const auto sums = read_checksums(checkpoint))
    if (const auto sum = sums->find(losses_file); sum != sums->end()) check_sums(checkpoint, {*sum});
  return read_json_file(file);
}

// A checkpoint without losses.json, or with a damaged one, is no candidate for LOWEST_VAL.
std::optional<double> noted_loss(const fs::path& checkpoint, const std::string& set) {
  try {
    const Json json = read_losses(checkpoint);
    const auto loss = JsonView(json, (checkpoint / losses_file).string()).find(set);
    if (loss && std::isfinite(loss->number())) return loss->number();
  } catch (const Error& e) {
    log_warning(e.what());
  }
  return std::nullopt;
}

// Whether a run makes temporary files or folders for this name: links, logs, checkpoints, pruned ones,
// tokens.
bool is_of_a_run(const std::string& name) {
  const bool log = name.starts_with("training.jsonl") ||
                   (name.starts_with("validation") && name.find(".jsonl") != name.npos);
  return log || name == latest_link || name == lowest_link || name.starts_with(pruned) ||
         name == CheckpointFolder::token_name || CheckpointFolder::steps_in(name) > 0;
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path dir, std::string best_metric_key)
    : dir_(std::move(dir)), best_metric_key_(std::move(best_metric_key)) {}

std::string CheckpointFolder::name_of(const RunState& state) {
  return cat("epoch_", state.loader.epoch, "_step_", state.step - 1);
}

std::int64_t CheckpointFolder::steps_in(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  const auto at = name.rfind("_step_");
  if (!name.starts_with("epoch_") || at == std::string::npos) return 0;
  std::int64_t step = -1;
  const char *begin = name.data() + at + 6, *end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, end, step);
  const bool number = error == std::errc() && stop == end && step < std::numeric_limits<std::int64_t>::max();
  return number && step >= 0 ? step + 1 : 0;
}

std::vector<fs::path> CheckpointFolder::published() const {
  std::vector<fs::path> found;
  for (const fs::path& path : entries_of(dir_))
    if (!fs::is_symlink(path) && steps_in(path) > 0) found.push_back(path);
  std::ranges::sort(found, {}, [](const fs::path& p) { return steps_in(p); });
  return found;
}

std::vector<fs::path> CheckpointFolder::later_than(std::int64_t steps) const {
  std::vector<fs::path> later = published();
  std::erase_if(later, [&](const fs::path& c) { return steps_in(c) <= steps; });
  return later;
}

std::optional<fs::path> CheckpointFolder::newest() const {
  std::vector<fs::path> candidates = published();
  const fs::path link = linked_name(dir_ / latest_link);
  const fs::path latest = dir_ / link;
  if (!link.empty() && fs::exists(latest)) {
    std::erase(candidates, latest);
    candidates.push_back(latest);
  }
  if (candidates.empty()) return std::nullopt;
  fs::path likeliest = candidates.back();
  std::erase_if(candidates, [](const fs::path& c) { return !is_whole(c); });
  if (candidates.empty()) return likeliest;
  fs::path found = candidates.back();
  // Trust LATEST even if its state.json cannot be read: skipping that checkpoint would hide the damage.
  std::int64_t highest = std::numeric_limits<std::int64_t>::max();
  if (found != latest || serial_of(found)) {
    highest = serial_of(found).value_or(0);
    for (const fs::path& c : candidates)
      if (const std::int64_t serial = serial_of(c).value_or(0); serial > highest) {
        highest = serial;
        found = c;
      }
  }
  if (link.empty() || found == latest) return found;
  if (is_whole(latest))
    log_info(found.string(), " was written after ", latest.string(),
             ", where LATEST points; taking the newer");
  else
    log_warning(latest.string(), " is no whole checkpoint; taking ", found.string());
  return found;
}

std::int64_t CheckpointFolder::next_serial(std::int64_t parent_serial) const {
  std::int64_t highest = parent_serial;
  for (const fs::path& c : published()) highest = std::max(highest, serial_of(c).value_or(0));
  return highest + 1;
}

void CheckpointFolder::publish(StagingDirectory& staging, const fs::path& target,
                               const Origin& origin) const {
  if (fs::exists(target)) set_aside(target);
  staging.publish();
  settle(target, origin);
}

void CheckpointFolder::settle(const fs::path& newest, const Origin& origin) const {
  point_link(dir_ / latest_link, newest.filename().string());
  bool moved = false;
  if (!origin.parent.empty())
    for (const fs::path& c : later_than(origin.parent_steps))
      if (c != newest && serial_of(c).value_or(0) < origin.serial) {
        set_aside(c);
        moved = true;
      }
  if (moved) point_to_lowest();
  sync_directory(dir_);
}

// Renames the checkpoint instead of removing it: if the process is killed before the next rename, every
// checkpoint still exists under a name of its own.
void CheckpointFolder::set_aside(const fs::path& checkpoint) const {
  fs::path place = dir_ / abandoned / checkpoint.filename();
  fs::create_directories(place.parent_path());
  for (int i = 1; fs::exists(place); ++i) place.replace_filename(cat(checkpoint.filename().string(), ".", i));
  fs::rename(checkpoint, place);
  sync_directory(place.parent_path());
  log_info("checkpoint ", checkpoint.string(), " is of a branch that this run has left: moved to ",
           place.string());
}

void CheckpointFolder::recover(const LoggedLosses& logged) const {
  std::error_code ignored;
  for (const fs::path& path : entries_of(dir_)) {
    const auto target = target_of_temporary(path.filename().string());
    if (!target || !is_of_a_run(*target)) continue;
    const bool whole = steps_in(*target) > 0 && fs::exists(path / checksums_file);
    if (!whole || fs::exists(dir_ / *target)) {
      log_debug("removing ", path.string(), ", which a killed process left");
      fs::remove_all(path, ignored);
      continue;
    }
    // The run was killed between the last byte and the rename. A checkpoint that had this name has been moved
    // away already.
    std::error_code error;
    fs::rename(path, dir_ / *target, error);
    if (!error)
      log_info("checkpoint ", (dir_ / *target).string(), " was whole when its run was killed: kept");
  }
  for (const fs::path& checkpoint : published())
    for (const fs::path& path : entries_of(checkpoint))
      if (const auto target = target_of_temporary(path.filename().string());
          target == losses_file || target == checksums_file)
        fs::remove(path, ignored);
  if (const auto last = newest(); last && is_whole(*last) && serial_of(*last)) {
    if (const auto origin = read_origin(*last / "state.json")) settle(*last, *origin);
    if (logged) note_logged(*last, logged);
  }
  point_to_lowest();
}

void CheckpointFolder::note_logged(const fs::path& checkpoint, const LoggedLosses& logged) const {
  try {
    const Json noted = read_losses(checkpoint);
    Json losses(logged(checkpoint, serial_of(checkpoint).value_or(0)));
    if (noted.is_object()) losses.update(noted);
    if (!losses.empty()) add_file(checkpoint, losses_file, dump_json(losses) + "\n");
  } catch (const Error& e) {
    log_warning(e.what());  // load() refuses the checkpoint, if this is the one to load
  }
}

void CheckpointFolder::prune(std::int64_t keep, const fs::path& newest) const {
  std::vector<fs::path> all = published();
  std::erase(all, newest);
  const auto others = static_cast<std::size_t>(std::max<std::int64_t>(keep - 1, 0));
  if (all.size() <= others) return;
  std::error_code ignored;
  const fs::path linked = linked_name(dir_ / lowest_link), best = lowest_of(all);
  for (std::size_t i = 0; i + others < all.size(); ++i) {
    if (all[i] == best || all[i].filename() == linked) continue;
    // Rename before removing: removal takes long, and half a checkpoint must not look like a complete one.
    const fs::path doomed = temporary_sibling(dir_ / (pruned + all[i].filename().string()));
    std::error_code error;
    fs::rename(all[i], doomed, error);
    if (!error) fs::remove_all(doomed, ignored);
  }
}

void CheckpointFolder::note_losses(const fs::path& checkpoint,
                                   const std::map<std::string, double>& losses) const {
  if (!fs::exists(checkpoint)) {
    log_warning(checkpoint.string(), " was removed while the run goes on: its losses are not noted there");
    return;
  }
  add_file(checkpoint, losses_file, dump_json(Json(losses)) + "\n");
  point_to_lowest();
  sync_directory(dir_);
}

// The first of equals; empty where no checkpoint has a finite loss.
fs::path CheckpointFolder::lowest_of(const std::vector<fs::path>& checkpoints) const {
  std::optional<double> lowest;
  fs::path best;
  for (const fs::path& checkpoint : checkpoints) {
    const auto loss = noted_loss(checkpoint, best_metric_key_);
    if (!loss || (lowest && *loss >= *lowest)) continue;
    lowest = loss;
    best = checkpoint;
  }
  return best;
}

void CheckpointFolder::point_to_lowest() const {
  const fs::path link = dir_ / lowest_link, best = lowest_of(published());
  if (!best.empty()) return point_link(link, best.filename().string());
  std::error_code ignored;
  const fs::path linked = linked_name(link);
  if (!linked.empty() && !fs::exists(dir_ / linked)) fs::remove(link, ignored);
}

}  // namespace nemocube
