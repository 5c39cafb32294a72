#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "data/json/atomic_file.h"
#include "data/json/json.h"

namespace nemocube {

/// The marks of a model directory, kept by files that leave weights to it: adapters, and checkpoints without
/// frozen weights. As JSON:
///     {"path": "/hub/models--nvidia--N/snapshots/5f2c", "name": "nvidia/N", "revision": "5f2c",
///      "files": {"config.json": {"bytes": 1834, "crc32c": "e3069283"},
///                "model.safetensors": {"bytes": 3912, "sampled_crc32c": "0a1b2c3d"}}}
struct ModelRecord {
  struct File {
    std::int64_t bytes = 0;
    std::optional<std::uint32_t> crc32c;   ///< of all bytes, where that is cheap to know
    std::optional<std::uint32_t> sampled;  ///< sampled_sum(), of files of tensors
  };
  std::filesystem::path path;  ///< absolute, with links followed
  std::string name,
      revision;  ///< of the Hugging Face Hub, where the directory is a snapshot in its cache; else empty
  std::map<std::string, File> files;  ///< config.json, the weights and their index, frozen_weights.json

  /// "nvidia/N (revision 5f2c)", or the path.
  std::string label() const;
};

/// Whether the directory is the snapshot of this name and revision in hub_cache(), so that
/// others can find it by name and revision.
bool is_in_hub_cache(const ModelRecord& record);

/// Reads config.json, the index, and of each file of weights its header and up to 4 KiB of each tensor, which
/// loading reads as well. `known`: sums of files from the directory's checkpoint, which are taken over, not
/// computed. Throws Error where files are missing or damaged.
ModelRecord record_of_model(const std::filesystem::path& directory, const FileSums& known = {});

Json to_json(const ModelRecord& record);
/// Throws Error naming file and place where something is missing or of another type.
ModelRecord model_record_from(const JsonView& json);

/// In which file two models differ, and how: "model.safetensors has other weights"; empty where all sums that
/// both records have are the same. Names and paths do not count.
std::string first_difference(const ModelRecord& written, const ModelRecord& found);

/// The CRC-32C of a safetensors file's header (its tensors and metadata) and of 4 KiB from the middle of each
/// of its tensors, or of all of a smaller one. Training changes the sampled elements of every trained tensor,
/// so the sum tells models apart. It does not see damage to other elements.
std::uint32_t sampled_sum(const std::filesystem::path& file);

}  // namespace nemocube
