#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "data/json/json.h"
#include "data/safetensors/reader.h"
#include "model/tensor_name.h"

/// Models of several parts (Nemotron Nano Omni, Nano VL): the config.json of the whole has the language
/// model's config under `llm_config`, `text_config` or `language_config`.
namespace nemocube {

/// The language model's config in the config of a model of several parts. Nothing where config.json is of
/// another kind, or where the part is no model of a known family (data/hf/families).
std::optional<JsonView> language_part(const JsonView& config);

/// The name of a tensor without the additions of PyTorch's wrappers of modules: "module." in front
/// (DataParallel), and "_orig_mod." (torch.compile), "_fsdp_wrapped_module." and
/// "_checkpoint_wrapped_module." anywhere.
std::string without_wrappers(std::string_view name_in_file);

/// The same, also without the prefix of the language model's tensors: "language_model." or
/// "model.language_model.".
std::string without_language_prefix(std::string_view name_in_file);

/// The facts in a directory's config.json about the names of its tensors. Without a config.json of a known
/// family the names are of the first family.
struct DirectoryModel {
  const NameTable* names;
  bool several_parts;  ///< language_part() is not empty
};
DirectoryModel directory_model(const std::filesystem::path& directory);

/// Tells by its name in a file whether a tensor of a directory is the language model's. In a model of several
/// parts the language model's tensors have one of three forms:
/// - names that begin with "language_model.";
/// - names that begin with "model.language_model.", and the head and multi-token
///   prediction beside them ("lm_head.", "mtp.");
/// - flat, the names of a language model alone ("backbone.layers.0..", "lm_head.weight").
/// In all other directories all tensors are the language model's.
std::function<bool(std::string_view)> language_tensors(const DirectoryModel& model,
                                                       const SafetensorsTensors& tensors);

}  // namespace nemocube
