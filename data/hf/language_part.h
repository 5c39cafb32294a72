#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "data/json/json.h"
#include "data/safetensors/reader.h"
#include "model/tensor_name.h"

/// Models of several parts (Nemotron Nano Omni, Nano VL): the config.json of the whole has that of its
/// language model under `llm_config`, `text_config` or `language_config`.
namespace nemocube {

/// The language model's config in that of a model of several parts; nothing where config.json is no such
/// model, or the part is no model of a known family (data/hf/families).
std::optional<JsonView> language_part(const JsonView& config);

/// The name of a tensor without what PyTorch's wrappers of modules add to it: "module." in front
/// (DataParallel), and "_orig_mod." (torch.compile), "_fsdp_wrapped_module." and
/// "_checkpoint_wrapped_module." anywhere.
std::string without_wrappers(std::string_view name_in_file);

/// The same without what says that a tensor belongs to the language model: "language_model." or
/// "model.language_model.".
std::string without_language_prefix(std::string_view name_in_file);

/// What config.json of a directory says of the names of its tensors. Where there is none, or one of no known
/// family, the names are those of the first family.
struct DirectoryModel {
  const NameTable* names;
  bool several_parts;  ///< language_part() is one
};
DirectoryModel directory_model(const std::filesystem::path& directory);

/// Tells by name in a file which of a directory's tensors are the language model's. In a model of several
/// parts these are, in the three forms that are written:
/// - the names that begin with "language_model.";
/// - those that begin with "model.language_model.", and the head and multi-token prediction beside them
///   ("lm_head.", "mtp.");
/// - flat, the names that a language model has alone ("backbone.layers.0..", "lm_head.weight").
/// In all other directories all are.
std::function<bool(std::string_view)> language_tensors(const DirectoryModel& model,
                                                       const SafetensorsTensors& tensors);

}  // namespace nemocube
