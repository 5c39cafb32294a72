#include "train/checkpoint/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/log.h"
#include "core/version.h"
#include "data/files/staging_directory.h"
#include "data/safetensors/reader.h"
#include "data/safetensors/writer.h"
#include "train/checkpoint/checksums.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

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

// The name of a checkpoint of this directory, else its path.
std::string name_in(const fs::path& dir, const fs::path& checkpoint) {
  std::error_code none;
  return fs::equivalent(checkpoint.parent_path(), dir, none) ? checkpoint.filename().string()
                                                             : checkpoint.string();
}

void check_whole(const fs::path& checkpoint) {
  const auto sums = read_checksums(checkpoint);
  if (sums) return check_sums(checkpoint, *sums);
  require(!read_origin(checkpoint / "state.json"), (checkpoint / checksums_file).string(),
          ": damaged: is missing");
  log_info(checkpoint.string(), " was written without checksums: its files cannot be checked for damage");
}

}  // namespace

Checkpoints::Checkpoints(const CheckpointSection& section, std::string resolved_recipe)
    : section_(section),
      folder_(section.checkpoint_dir, section.best_metric_key),
      resolved_recipe_(std::move(resolved_recipe)) {}

fs::path Checkpoints::save(const LoadedModel& model, const Optimizer& optimizer, const RunState& state) {
  const fs::path target = folder_.dir() / CheckpointFolder::name_of(state);
  const Origin origin{std::string(version()), next_serial(), parent_.name, parent_.steps};
  try {
    StagingDirectory staging(target);
    const fs::path& place = staging.path();
    SaveOptions options;
    options.dtype = model.model->dtype();
    FileSums sums;
    for (auto& [name, sum] :
         save_hf_weights(place / "model", named_tensors(*model.model), model.files, options))
      sums["model/" + name] = sum;
    std::vector<TensorSource> tensors;
    for (const StateTensor& t : optimizer.state())
      tensors.push_back(source_of(t.name, t.value, t.value.dtype()));
    fs::create_directory(place / "optim");
    sums["optim/optimizer.safetensors"] =
        write_safetensors(place / "optim" / "optimizer.safetensors", std::move(tensors));
    sums["state.json"] = write_run_state(place / "state.json", state, origin);
    sums["config.yaml"] = write_file_atomically(place / "config.yaml", resolved_recipe_);
    write_checksums(place, sums);
    folder_.publish(staging, target, origin);
  } catch (const fs::filesystem_error& e) {
    fail("checkpoint ", target.string(), ": cannot be written: ", e.code().message());
  } catch (const Error& e) {
    fail("checkpoint ", target.string(), ": ", e.what());
  }
  parent_ = {target.filename().string(), state.step, origin.serial};
  if (section_.max_recent_checkpoints) folder_.prune(*section_.max_recent_checkpoints, target);
  return target;
}

std::optional<fs::path> Checkpoints::find() const {
  if (!section_.restore_from) return folder_.newest();
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

RunState Checkpoints::load(const fs::path& checkpoint, NemotronH& model, Optimizer& optimizer) {
  check_intact(checkpoint);
  const fs::path file = checkpoint / "state.json";
  const RunState state = read_run_state(file);
  const auto origin = read_origin(file);
  load_hf_weights(checkpoint / "model", named_tensors(model));
  load_optimizer(checkpoint / "optim" / "optimizer.safetensors", optimizer);
  optimizer.set_steps(state.optimizer_steps);
  parent_ = {name_in(folder_.dir(), checkpoint), state.step, origin ? origin->serial : 0};
  const auto later = folder_.later_than(state.step);
  if (!later.empty())
    log_warning(later.size(), " checkpoint", later.size() == 1 ? "" : "s", " up to ", later.back().string(),
                later.size() == 1 ? " is" : " are",
                " of later steps than the one resumed from; the first that this run saves moves ",
                later.size() == 1 ? "it" : "them", " to ", (folder_.dir() / "abandoned").string());
  return state;
}

std::size_t Checkpoints::to_be_abandoned() const {
  return parent_.name.empty() ? 0 : folder_.later_than(parent_.steps).size();
}

}  // namespace nemocube
