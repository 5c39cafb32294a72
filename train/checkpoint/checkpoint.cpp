#include "train/checkpoint/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/log.h"
#include "data/json/atomic_file.h"
#include "data/json/json.h"
#include "data/safetensors/reader.h"
#include "data/safetensors/writer.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

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
// time.
void remove_unfinished(const fs::path& dir) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(".epoch_") && name.ends_with(".tmp")) fs::remove_all(entry.path(), ignored);
  }
}

void point(const fs::path& link, const fs::path& target) {
  const fs::path fresh = temporary_sibling(link);
  fs::create_symlink(target.filename(), fresh);
  fs::rename(fresh, link);
}

Json to_json(const RunState& s) {
  Json json{{"step", s.step},
            {"scheduler_steps", s.scheduler_steps},
            {"optimizer_steps", s.optimizer_steps},
            {"samples", s.samples},
            {"skipped_steps", s.skipped_steps},
            {"nonfinite_in_a_row", s.nonfinite_in_a_row}};
  json["lowest_validation_loss"] = s.lowest_validation_loss ? Json(*s.lowest_validation_loss) : Json();
  json["loader"] = nemocube::to_json(s.loader);
  return json;
}

RunState read_state(const fs::path& file) {
  const Json json = read_json_file(file);
  const JsonView view(json, file.string());
  RunState s;
  const auto count = [&](const char* name) {
    const JsonView value = view.at(name);
    if (value.integer() < 0) value.refuse("an integer from 0");
    return value.integer();
  };
  s.step = count("step");
  s.scheduler_steps = count("scheduler_steps");
  s.optimizer_steps = count("optimizer_steps");
  s.samples = count("samples");
  s.skipped_steps = count("skipped_steps");
  s.nonfinite_in_a_row = count("nonfinite_in_a_row");
  if (const auto lowest = view.find("lowest_validation_loss")) s.lowest_validation_loss = lowest->number();
  s.loader = loader_state_from_json(view.at("loader"));
  return s;
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

fs::path Checkpoints::save(const LoadedModel& model, const Optimizer& optimizer, const RunState& state,
                           bool lowest) const {
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
    write_file_atomically(staging / "state.json", dump_json(to_json(state)) + "\n");
    write_file_atomically(staging / "config.yaml", resolved_recipe_);
    if (fs::exists(target)) {
      // Only when a run goes on from an older checkpoint: the new one takes the place of the old one.
      const fs::path old = temporary_sibling(target);
      fs::rename(target, old);
      fs::rename(staging, target);
      fs::remove_all(old);
    } else {
      fs::rename(staging, target);
    }
    sync_directory(dir_);
    point(dir_ / "LATEST", target);
    if (lowest) point(dir_ / "LOWEST_VAL", target);
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
  const std::vector<fs::path> all = published(dir_);
  if (all.empty()) return std::nullopt;
  return all.back();
}

RunState Checkpoints::load(const fs::path& checkpoint, NemotronH& model, Optimizer& optimizer) const {
  const RunState state = read_state(checkpoint / "state.json");
  load_hf_weights(checkpoint / "model", named_tensors(model));
  load_optimizer(checkpoint / "optim" / "optimizer.safetensors", optimizer);
  optimizer.set_steps(state.optimizer_steps);
  return state;
}

}  // namespace nemocube
