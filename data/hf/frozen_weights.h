#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "data/hf/model_record.h"

namespace nemocube {

/// The weights that a directory leaves to another one, because the run that wrote it did not train them. The
/// file frozen_weights.json says which:
///     {"base_model_name_or_path": "/models/nemotron", "tensors": ["backbone.embeddings.weight", ...],
///     "base": ModelRecord}
struct FrozenWeights {
  static constexpr const char* file_name = "frozen_weights.json";
  std::filesystem::path base;                  ///< the other directory, by its absolute path
  std::set<std::string, std::less<>> tensors;  ///< canonical names
  std::optional<ModelRecord> record =
      {};  ///< of `base` when the file was written; absent in files of older programs
};

/// The file of a directory; nothing without it. Throws Error naming the file and the mistake in it.
std::optional<FrozenWeights> read_frozen_weights(const std::filesystem::path& directory);
std::string to_json_text(const FrozenWeights& frozen);

}  // namespace nemocube
