#pragma once
#include <filesystem>
#include <optional>

namespace nemocube {

/// The Hugging Face directory (one that holds config.json) behind a user's name:
///     DIR                          itself
///     RUN/epoch_E_step_S           DIR/model, where a checkpoint keeps its model; also RUN/LATEST,
///                                  RUN/LOWEST_VAL
///     RUN                          RUN/LATEST/model
/// The links LATEST and LOWEST_VAL are followed once, so that all files come from one checkpoint while the
/// run goes on. Throws Error that names the places looked at.
std::filesystem::path find_model(const std::filesystem::path& named);

/// The same for a directory with adapter_config.json.
std::filesystem::path find_adapter(const std::filesystem::path& named);

/// The name of an adapter's model, for find_model(): the path in base_model.json where the model is still
/// there, else base_model_name_or_path; nothing where this key is null.
std::optional<std::filesystem::path> base_of_adapter(const std::filesystem::path& adapter);

/// A model, and the adapter that is added to it.
struct ModelAndAdapter {
  std::filesystem::path model, adapter;  ///< adapter: empty without one
  /// The directory whose generation_config.json counts: the adapter's
  /// where it has such a file, else the model's.
  const std::filesystem::path& generation_folder() const;
};
/// `named` is a model, or an adapter that names its model, such as the checkpoint of a run that trained an
/// adapter. `adapter`: another directory with an adapter for the model; empty: none. Throws Error where both
/// are adapters, and where the model that an adapter names is not here.
ModelAndAdapter find_model_and_adapter(const std::filesystem::path& named,
                                       const std::filesystem::path& adapter);

/// The same for a directory with tokenizer.json; the path of a file is returned unchanged.
std::filesystem::path find_tokenizer(const std::filesystem::path& named);

}  // namespace nemocube
