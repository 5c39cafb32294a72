#include "train/run/tensorboard_folder.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/log.h"
#include "data/json/atomic_file.h"
#include "data/json/json.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr const char* tensorboard_key = "tensorboard.tensorboard_dir";

fs::path resolved(const fs::path& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(path, error);
  return error ? fs::absolute(path).lexically_normal() : found;
}

/// The checkpoint directory that the folder names.
std::optional<fs::path> named_run(const fs::path& folder) {
  const fs::path file = folder / TensorboardFolder::file_name;
  std::error_code none;
  if (!fs::exists(file, none)) return std::nullopt;
  const Json json = read_json_file(file);
  return resolved(folder / JsonView(json, file.string()).at("checkpoint_dir").string());
}

}  // namespace

TensorboardFolder::TensorboardFolder(fs::path folder, fs::path checkpoint_dir)
    : folder_(std::move(folder)), checkpoint_dir_(resolved(checkpoint_dir)), lock_(folder_, tensorboard_key) {
  const std::optional<fs::path> other = named_run(folder_);
  if (!other || *other == checkpoint_dir_) return;
  require(!fs::exists(*other), tensorboard_key, ": ", folder_.string(),
          " has the event files of another run, that of ", other->string(),
          "; want a folder for this run alone, which null makes in checkpoint.checkpoint_dir");
  log_warning(tensorboard_key, ": ", folder_.string(), " has the event files of the run of ", other->string(),
              ", which is no longer there; this run adds its own to them");
}

void TensorboardFolder::claim() const {
  if (named_run(folder_) == checkpoint_dir_) return;
  const fs::path relative = checkpoint_dir_.lexically_relative(resolved(folder_));
  const bool inside = !relative.empty() && *relative.begin() == ".." &&
                      resolved(folder_).string().starts_with(checkpoint_dir_.string() + "/");
  write_file_atomically(
      folder_ / file_name,
      dump_json({{"checkpoint_dir", (inside ? relative : checkpoint_dir_).string()}}) + "\n");
}

}  // namespace nemocube
