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
      {};  ///< of `base` when the file was written; nothing in files of older programs
};

/// Of a directory; nothing where there is no such file. Throws Error naming the file and what in it is wrong.
std::optional<FrozenWeights> read_frozen_weights(const std::filesystem::path& directory);
std::string to_json_text(const FrozenWeights& frozen);

}  // namespace nemocube
