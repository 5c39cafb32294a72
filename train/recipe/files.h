#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "train/model_io/find_model.h"
#include "train/recipe/recipe.h"

/// The files that a recipe names.
namespace nemocube {

/// The files that a dataset of rows reads: `path` or dataset_name, or, in a folder, the file of the split.
/// Throws Error saying what to download when only a hub name is known. Messages begin with `where`; empty
/// stands for dataset_file_key().
std::vector<std::filesystem::path> dataset_files(const DatasetSection& dataset,
                                                 const std::string& where = "");
/// The file of a dataset that reads only one.
std::filesystem::path dataset_file(const DatasetSection& dataset, const std::string& where = "");
/// The .idx and .bin files of a megatron dataset. Throws Error "where: ..." when one does not exist.
std::vector<std::filesystem::path> token_files(const DatasetSection& dataset, const std::string& where = "");
/// The key that names this file: dataset.path or dataset.dataset_name.
std::string dataset_file_key(const DatasetSection& dataset);
/// dataset.tokenizer, else tokenizer, else the folder of the model: a folder with tokenizer.json, or the file
/// itself. Throws Error when there is none.
std::filesystem::path tokenizer_path(const Recipe& recipe, const DatasetSection& dataset);
/// tokenizer_path(), or, where that is a run or a checkpoint, the tokenizer in it
/// (find_tokenizer()). Throws Error also when the path does not exist; messages begin with
/// `where`, empty stands for tokenizer_key().
std::filesystem::path existing_tokenizer_path(const Recipe& recipe, const DatasetSection& dataset,
                                              std::string where = "");
/// The key that names the tokenizer.
std::string tokenizer_key(const Recipe& recipe, const DatasetSection& dataset);
/// The message "'path' does not exist"; for a relative path with the folder in which it starts.
std::string does_not_exist(const std::string& path);
/// A folder itself, or the folder that holds a file: a recipe may name a model by its config.json and a
/// tokenizer by its tokenizer.json.
std::filesystem::path folder_of(const std::filesystem::path& folder_or_file);
/// The config in the model's config.json. A command reads it once and passes it on, so that it warns once.
/// Throws Error as read_hf_config() does.
ModelConfig config_of_model(const Recipe& recipe);
/// config_of_model(); nothing where the recipe names no model, or a folder without config.json: data can be
/// inspected without a model.
std::optional<ModelConfig> config_if_there(const Recipe& recipe);
/// The folder of the model, and the adapter that a run begins with (peft.adapter_path). Throws Error as
/// find_adapter() does.
ModelAndAdapter model_and_adapter(const Recipe& recipe);

}  // namespace nemocube
