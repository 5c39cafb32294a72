#include "train/checkpoint/intact.h"

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "core/log.h"
#include "data/files/regular_file.h"
#include "data/json/json.h"
#include "parallel/comm/together.h"
#include "train/checkpoint/checksums.h"
#include "train/checkpoint/run_state.h"
#include "train/checkpoint/verify_files.h"
#include "train/logging/progress.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view model_folder = "model";

constexpr char found_sums = 's', found_none = 'n', found_damage = 'd';  // in front of what rank 0 tells

// On rank 0.
std::string checksums_text(const fs::path& checkpoint) {
  try {
    if (!want_checksums(checkpoint)) return {found_none};
    return found_sums + read_text_file(checkpoint / checksums_file, JsonLimits{}.max_bytes);
  } catch (const fs::filesystem_error& e) {
    return found_damage + cat(checkpoint.string(), ": cannot be read: ", e.code().message());
  } catch (const Error& e) {
    return found_damage + std::string(e.what());
  }
}

// What is wrong with the first damaged file; empty: nothing. The same on all ranks.
std::string damage_of(const fs::path& checkpoint, Communicator* ranks) {
  const std::string text = text_of_rank_0(ranks, [&] { return checksums_text(checkpoint); });
  if (text[0] == found_damage) return text.substr(1);
  if (text[0] == found_none) {
    log_info(checkpoint.string(), " was written without checksums: its files cannot be checked for damage");
    return "";
  }
  const FileSums sums = parse_checksums(std::string_view(text).substr(1), checkpoint / checksums_file);
  TaskProgress progress("checking the files of the checkpoint", "bytes");
  const std::vector<std::string> damage = find_damage(checkpoint, sums, ranks, std::ref(progress));
  return damage.empty() ? "" : damage[0];
}

// Those that can be checked, the newest first, as rank 0 sees the folder.
std::vector<std::string> names_before(const CheckpointFolder& folder, const fs::path& checkpoint,
                                      Communicator* ranks) {
  std::istringstream text(text_of_rank_0(ranks, [&] {
    std::string names;
    for (const fs::path& c : folder.published())
      if (CheckpointFolder::steps_in(c) < CheckpointFolder::steps_in(checkpoint) &&
          fs::exists(c / checksums_file))
        names.insert(0, c.filename().string() + '/');
    return names;
  }));
  std::vector<std::string> names;
  for (std::string name; std::getline(text, name, '/');) names.push_back(name);
  return names;
}

}  // namespace

std::optional<FileSums> want_checksums(const fs::path& checkpoint) {
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint))
    if (entry.is_other()) const RegularFile refused(entry.path());  // a FIFO, socket or device
  auto sums = read_checksums(checkpoint);
  require(sums || !read_origin(checkpoint / "state.json"), (checkpoint / checksums_file).string(),
          ": damaged: is missing");
  return sums;
}

void check_intact(const CheckpointFolder& folder, const fs::path& checkpoint, Communicator* ranks) {
  const std::string damage = damage_of(checkpoint, ranks);
  if (damage.empty()) return;
  for (const std::string& name : names_before(folder, checkpoint, ranks))
    if (damage_of(folder.dir() / name, ranks).empty())
      fail(damage, "; the newest intact checkpoint before it: --set checkpoint.restore_from=", name);
  fail(damage);
}

std::optional<fs::path> checkpoint_of_model(const fs::path& model) {
  const fs::path place = model.has_filename() && model.filename() != "." && model.filename() != ".."
                             ? model
                             : fs::absolute(model).lexically_normal().parent_path();
  if (place.filename() != model_folder) return std::nullopt;
  const fs::path checkpoint = place.has_parent_path() ? place.parent_path() : ".";
  std::error_code none;
  const bool is_one = fs::exists(checkpoint / "state.json", none) || fs::exists(checkpoint / "optim", none);
  return is_one ? std::optional(checkpoint) : std::nullopt;
}

FileSums sums_of_model(const FileSums& of_checkpoint) {
  const std::string prefix = cat(model_folder, '/');
  FileSums sums;
  for (const auto& [name, sum] : of_checkpoint)
    if (name.starts_with(prefix)) sums.emplace(name.substr(prefix.size()), sum);
  return sums;
}

void check_model_of_checkpoint(const fs::path& model, const OnBytes& on_bytes) {
  const auto checkpoint = checkpoint_of_model(model);
  if (!checkpoint) return;
  const auto sums = want_checksums(*checkpoint);
  if (!sums) return;
  const std::vector<std::string> damage =
      find_damage(*checkpoint / model_folder, sums_of_model(*sums), nullptr, on_bytes);
  require(damage.empty(), damage.empty() ? "" : damage[0],
          damage.size() < 2 ? "" : cat(" (", damage.size(), " files are damaged)"));
}

}  // namespace nemocube
