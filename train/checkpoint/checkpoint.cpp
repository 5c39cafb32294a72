#include "train/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "core/log.h"
#include "data/json/atomic_file.h"
#include "data/json/json.h"
#include "data/safetensors/reader.h"
#include "data/safetensors/writer.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr const char *losses_file = "losses.json", *abandoned = "abandoned";

std::string checkpoint_name(const RunState& state) {
  return cat("epoch_", state.loader.epoch, "_step_", state.step - 1);
}

// The step of "epoch_E_step_S"; -1 for any other name.
std::int64_t step_of(const std::string& name) {
  const auto at = name.rfind("_step_");
  if (!name.starts_with("epoch_") || at == std::string::npos) return -1;
  std::int64_t step = -1;
  const char *begin = name.data() + at + 6, *end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, end, step);
  return error == std::errc() && stop == end ? step : -1;
}

std::vector<fs::path> published(const fs::path& dir) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored))
    if (!entry.is_symlink() && step_of(entry.path().filename()) >= 0) found.push_back(entry.path());
  std::ranges::sort(found, {}, [](const fs::path& p) { return step_of(p.filename()); });
  return found;
}

// What a run that was killed while saving left behind. One process writes to a checkpoint directory at a
// time (train/loop/run_lock.h).
void remove_unfinished(const fs::path& dir) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(".epoch_") && name.ends_with(".tmp")) fs::remove_all(entry.path(), ignored);
  }
}

void point(const fs::path& link, const fs::path& target) {
  const fs::path fresh = temporary_sibling(link);
  std::error_code error;
  fs::create_symlink(target.filename(), fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (std::error_code ignored; error) fs::remove(fresh, ignored);
  require(!error, link.string(), ": cannot be pointed at ", target.filename().string(), ": ",
          error.message());
}

// What note_losses() wrote; a checkpoint without it, or with a damaged one, is no candidate for LOWEST_VAL.
std::optional<double> noted_loss(const fs::path& checkpoint, const std::string& set) {
  const fs::path file = checkpoint / losses_file;
  if (!fs::exists(file)) return std::nullopt;
  try {
    const Json json = read_json_file(file);
    const auto loss = JsonView(json, file.string()).find(set);
    if (loss && std::isfinite(loss->number())) return loss->number();
  } catch (const Error& e) {
    log_warning(e.what());
  }
  return std::nullopt;
}

void load_optimizer(const fs::path& path, Optimizer& optimizer) {
  const SafetensorsFile file(path);
  std::vector<std::string> missing;
  std::size_t used = 0;
  for (const StateTensor& t : optimizer.state()) {
    if (!file.find(t.name)) {
      missing.push_back(t.name);
      continue;
    }
    const Tensor source = file.tensor(t.name);
    check_shape(path.string() + ": " + t.name, source, t.value.shape());
    check_dtype(path.string() + ": " + t.name, source, t.value.dtype());
    t.value.copy_from(source);
    ++used;
  }
  require(missing.empty(), path.string(), ": ", missing.size(), " tensors are missing, the first is '",
          missing.empty() ? "" : missing[0],
          "'; was it written with another optimizer or model.torch_dtype?");
  require(used == file.tensors().size(), path.string(), ": holds ", file.tensors().size(),
          " tensors, the optimizer has ", used,
          "; was it written with another optimizer or model.torch_dtype?");
}

}  // namespace

Checkpoints::Checkpoints(const CheckpointSection& section, std::string resolved_recipe)
    : section_(section), dir_(section.checkpoint_dir), resolved_recipe_(std::move(resolved_recipe)) {}

fs::path Checkpoints::save(const LoadedModel& model, const Optimizer& optimizer, const RunState& state) {
  const fs::path target = dir_ / checkpoint_name(state);
  remove_unfinished(dir_);
  const fs::path staging = temporary_sibling(target);
  try {
    fs::create_directories(staging / "optim");
    SaveOptions options;
    options.dtype = model.model->dtype();
    save_hf_weights(staging / "model", named_tensors(*model.model), model.files, options);
    std::vector<TensorSource> tensors;
    for (const StateTensor& t : optimizer.state())
      tensors.push_back(source_of(t.name, t.value, t.value.dtype()));
    write_safetensors(staging / "optim" / "optimizer.safetensors", std::move(tensors));
    write_run_state(staging / "state.json", state);
    write_file_atomically(staging / "config.yaml", resolved_recipe_);
    if (fs::exists(target)) set_aside(target);
    fs::rename(staging, target);
    sync_directory(dir_);
    point(dir_ / "LATEST", target);
    leave_old_branch(target);
    sync_directory(dir_);
  } catch (const fs::filesystem_error& e) {
    std::error_code ignored;
    fs::remove_all(staging, ignored);
    fail("checkpoint ", target.string(), ": cannot be written: ", e.code().message());
  } catch (const Error& e) {
    std::error_code ignored;
    fs::remove_all(staging, ignored);
    fail("checkpoint ", target.string(), ": ", e.what());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(staging, ignored);
    throw;
  }
  prune(target);
  return target;
}

// Renamed, not removed: whatever happens between this and the next rename, every checkpoint is somewhere
// under a name of its own.
void Checkpoints::set_aside(const fs::path& checkpoint) const {
  fs::path place = dir_ / abandoned / checkpoint.filename();
  fs::create_directories(place.parent_path());
  for (int i = 1; fs::exists(place); ++i) place.replace_filename(cat(checkpoint.filename().string(), ".", i));
  fs::rename(checkpoint, place);
  sync_directory(place.parent_path());
  log_info("checkpoint ", checkpoint.string(), " is of a branch that this run has left: moved to ",
           place.string());
}

void Checkpoints::leave_old_branch(const fs::path& newest) {
  if (!branch_point_) return;
  for (const fs::path& checkpoint : published(dir_))
    if (step_of(checkpoint.filename()) >= *branch_point_ && checkpoint != newest) set_aside(checkpoint);
  branch_point_.reset();
  point_to_lowest();
}

void Checkpoints::note_losses(const fs::path& checkpoint, const std::map<std::string, double>& losses) const {
  write_file_atomically(checkpoint / losses_file, dump_json(Json(losses)) + "\n");
  point_to_lowest();
  sync_directory(dir_);
}

void Checkpoints::point_to_lowest() const {
  const fs::path link = dir_ / "LOWEST_VAL";
  std::optional<double> lowest;
  fs::path best;
  for (const fs::path& checkpoint : published(dir_)) {
    const auto loss = noted_loss(checkpoint, section_.best_metric_key);
    if (!loss || (lowest && *loss >= *lowest)) continue;
    lowest = loss;
    best = checkpoint;
  }
  std::error_code ignored;
  if (lowest)
    point(link, best);
  else if (!fs::exists(link))
    fs::remove(link, ignored);
}

void Checkpoints::prune(const fs::path& newest) const {
  if (!section_.max_recent_checkpoints) return;
  std::vector<fs::path> all = published(dir_);
  std::erase(all, newest);
  std::vector<fs::path> kept{newest.filename()};
  std::error_code none;
  kept.push_back(fs::read_symlink(dir_ / "LOWEST_VAL", none));
  const auto keep = static_cast<std::size_t>(std::max<std::int64_t>(*section_.max_recent_checkpoints - 1, 0));
  for (std::size_t i = 0; i + keep < all.size(); ++i)
    if (std::ranges::find(kept, all[i].filename()) == kept.end()) {
      std::error_code ignored;
      fs::remove_all(all[i], ignored);
    }
}

std::optional<fs::path> Checkpoints::find() const {
  if (section_.restore_from) {
    const fs::path named = *section_.restore_from;
    for (const fs::path& candidate : {dir_ / named, named})
      if (fs::exists(candidate / "state.json")) return fs::canonical(candidate);
    fail("checkpoint.restore_from: no checkpoint '", named.string(), "', neither in ", dir_.string(),
         " nor as a path");
  }
  std::vector<fs::path> candidates = published(dir_);
  std::error_code none;
  const fs::path latest = fs::read_symlink(dir_ / "LATEST", none);
  if (!latest.empty() && fs::exists(dir_ / latest)) candidates.push_back(dir_ / latest);
  if (candidates.empty()) return std::nullopt;
  const auto whole = std::find_if(candidates.rbegin(), candidates.rend(),
                                  [](const fs::path& c) { return fs::exists(c / "state.json"); });
  // Without a whole one, load() says what is wrong with the likeliest.
  const fs::path& found = whole == candidates.rend() ? candidates.back() : *whole;
  const fs::path wanted = latest.empty() ? candidates.back() : dir_ / latest;
  if (found != wanted) log_warning(wanted.string(), " is no whole checkpoint; taking ", found.string());
  return found;
}

RunState Checkpoints::load(const fs::path& checkpoint, NemotronH& model, Optimizer& optimizer) {
  const RunState state = read_run_state(checkpoint / "state.json");
  load_hf_weights(checkpoint / "model", named_tensors(model));
  load_optimizer(checkpoint / "optim" / "optimizer.safetensors", optimizer);
  optimizer.set_steps(state.optimizer_steps);
  branch_point_ = state.step;
  std::vector<fs::path> later = published(dir_);
  std::erase_if(later, [&](const fs::path& c) { return step_of(c.filename()) < state.step; });
  if (!later.empty())
    log_warning(later.size(), " checkpoints up to ", later.back().string(),
                " are of later steps than the one resumed from; the first that this run saves moves them to ",
                (dir_ / abandoned).string());
  return state;
}

}  // namespace nemocube
