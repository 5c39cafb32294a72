#include "train/checkpoint/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/log.h"
#include "core/version.h"
#include "data/files/regular_file.h"
#include "data/files/staging_directory.h"
#include "parallel/comm/together.h"
#include "train/checkpoint/checksums.h"
#include "train/checkpoint/optimizer_files.h"
#include "train/checkpoint/restore.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

// The name of a checkpoint of this directory, else its path.
std::string name_in(const fs::path& dir, const fs::path& checkpoint) {
  std::error_code none;
  return fs::equivalent(checkpoint.parent_path(), dir, none) ? checkpoint.filename().string()
                                                             : checkpoint.string();
}

void check_whole(const fs::path& checkpoint) {
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint))
    if (entry.is_other()) const RegularFile refused(entry.path());  // a FIFO, socket or device
  const auto sums = read_checksums(checkpoint);
  if (sums) return check_sums(checkpoint, *sums);
  require(!read_origin(checkpoint / "state.json"), (checkpoint / checksums_file).string(),
          ": damaged: is missing");
  log_info(checkpoint.string(), " was written without checksums: its files cannot be checked for damage");
}

}  // namespace

Checkpoints::Checkpoints(const CheckpointSection& section, std::string resolved_recipe, World* world,
                         const RankLayout& layout)
    : section_(section),
      folder_(section.checkpoint_dir, section.best_metric_key),
      resolved_recipe_(std::move(resolved_recipe)),
      world_(world && world->size() > 1 ? world : nullptr),
      ranks_(world_ ? &world_->communicator() : nullptr),
      layout_(layout.ranks() > 1 ? layout : RankLayout{}) {
  const int size = ranks_ ? ranks_->size() : 1;
  expect(layout_.ranks() == size, "checkpoints of ", layout_.ranks(), " ranks on ", size);
}

fs::path Checkpoints::save(const LoadedModel& model, const Optimizer& optimizer, const RunState& state) {
  const fs::path target = folder_.dir() / CheckpointFolder::name_of(state);
  Origin origin{std::string(version()), 0, parent_.name, parent_.steps};
  try {
    std::optional<StagingDirectory> staging;  // on rank 0
    const fs::path place = text_of_rank_0(ranks_, [&] {
      origin.serial = next_serial();
      staging.emplace(target);
      return staging->path().string();
    });
    SaveOptions options;
    options.dtype = model.model->dtype();
    FileSums sums;
    for (auto& [name, sum] :
         save_hf_weights(place / "model", named_tensors(*model.model), model.files, options, ranks_))
      sums["model/" + name] = sum;
    on_rank_0(ranks_, [&] { fs::create_directory(place / "optim"); });
    for (auto& [name, sum] : save_optimizer(place / "optim", optimizer, ranks_)) sums["optim/" + name] = sum;
    on_rank_0(ranks_, [&] {
      sums["state.json"] = write_run_state(place / "state.json", state, origin, layout_);
      sums["config.yaml"] = write_file_atomically(place / "config.yaml", resolved_recipe_);
      write_checksums(place, sums);
      folder_.publish(*staging, target, origin);
    });
  } catch (const fs::filesystem_error& e) {
    fail("checkpoint ", target.string(), ": cannot be written: ", e.code().message());
  } catch (const Error& e) {
    fail("checkpoint ", target.string(), ": ", e.what());
  }
  parent_ = {target.filename().string(), state.step, origin.serial};
  prune();
  return target;
}

void Checkpoints::prune() const {
  on_rank_0(ranks_, [&] {
    const bool here = !parent_.name.empty() && !fs::path(parent_.name).has_parent_path();
    if (section_.max_recent_checkpoints && here && folder_.later_than(parent_.steps).empty())
      folder_.prune(*section_.max_recent_checkpoints, folder_.dir() / parent_.name);
  });
}

void Checkpoints::note_losses(const fs::path& checkpoint, const std::map<std::string, double>& losses) const {
  on_rank_0(ranks_, [&] { folder_.note_losses(checkpoint, losses); });
}

void Checkpoints::recover(bool locked, const LoggedLosses& logged) const {
  on_rank_0(ranks_, [&] {
    if (locked) folder_.recover(logged);
  });
}

std::optional<fs::path> Checkpoints::find() const {
  const std::string found = text_of_rank_0(ranks_, [&] { return find_here().string(); });
  return found.empty() ? std::nullopt : std::optional<fs::path>(found);
}

fs::path Checkpoints::find_here() const {
  if (!section_.restore_from) return folder_.newest().value_or(fs::path());
  const fs::path named = *section_.restore_from;
  for (const fs::path& candidate : {folder_.dir() / named, named})
    if (fs::exists(candidate / "state.json")) return fs::canonical(candidate);
  fail("checkpoint.restore_from: no checkpoint '", named.string(), "', neither in ", folder_.dir().string(),
       " nor as a path");
}

void Checkpoints::check_intact(const fs::path& checkpoint) const {
  try {
    check_whole(checkpoint);
  } catch (const Error& damage) {
    std::vector<fs::path> before = folder_.published();
    std::erase_if(before, [&](const fs::path& c) {
      return CheckpointFolder::steps_in(c) >= CheckpointFolder::steps_in(checkpoint);
    });
    for (auto c = before.rbegin(); c != before.rend(); ++c) {
      try {
        check_whole(*c);
      } catch (const Error&) {
        continue;
      }
      fail(damage.what(), "; the newest intact checkpoint before it: --set checkpoint.restore_from=",
           c->filename().string());
    }
    throw;
  }
}

void Checkpoints::report_layout(const fs::path& checkpoint) const {
  const RankLayout written = read_rank_layout(checkpoint / "state.json");
  if (written == layout_) return;
  log_info(checkpoint.string(), " was written by ", to_string(written), ", this run has ", to_string(layout_),
           ": each rank takes its part");
}

RunState Checkpoints::load(const fs::path& checkpoint, NemotronH& model, Optimizer& optimizer) {
  on_rank_0(ranks_, [&] {
    check_intact(checkpoint);
    report_layout(checkpoint);
  });
  RunState state;
  std::optional<Origin> origin;
  together(ranks_, [&] {
    const fs::path file = checkpoint / "state.json";
    state = read_run_state(file);
    origin = read_origin(file);
  });
  restore_tensors(checkpoint, model, optimizer, section_, world_);
  if (section_.finetune) state = RunState{};
  if (!section_.load_optim) state.optimizer_steps = 0;
  if (!section_.load_scheduler) state.scheduler_steps = 0;
  optimizer.set_steps(state.optimizer_steps);
  parent_ = {name_in(folder_.dir(), checkpoint), state.step, origin ? origin->serial : 0};
  on_rank_0(ranks_, [&] {
    const auto later = folder_.later_than(state.step);
    if (later.empty()) return;
    log_warning(later.size(), " checkpoint", later.size() == 1 ? "" : "s", " up to ", later.back().string(),
                later.size() == 1 ? " is" : " are",
                " of later steps than the one resumed from; the first that this run saves moves ",
                later.size() == 1 ? "it" : "them", " to ", (folder_.dir() / "abandoned").string());
  });
  return state;
}

std::size_t Checkpoints::to_be_abandoned() const {
  return parent_.name.empty() ? 0 : folder_.later_than(parent_.steps).size();
}

}  // namespace nemocube
