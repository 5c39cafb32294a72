#pragma once
#include <filesystem>
#include <string>

#include "train/recipe/recipe.h"

/// The files that a recipe names.
namespace nemocube {

/// The file that a squad, messages or tokens dataset reads: `path` or dataset_name, or if that is a folder
/// the file of the split in it. Throws Error saying what to download when only a hub name is known.
std::filesystem::path dataset_file(const DatasetSection& dataset);
/// dataset.tokenizer, else tokenizer, else the folder of the model: a folder with tokenizer.json, or the file
/// itself. Throws Error when there is none.
std::filesystem::path tokenizer_path(const Recipe& recipe, const DatasetSection& dataset);
/// The same; throws Error also when the path does not exist.
std::filesystem::path existing_tokenizer_path(const Recipe& recipe, const DatasetSection& dataset);
/// The message "'path' does not exist", for a relative path with the folder it was looked for in.
std::string does_not_exist(const std::string& path);
/// A folder itself, or the folder that holds a file: a recipe may name a model by its config.json and a
/// tokenizer by its tokenizer.json.
std::filesystem::path folder_of(const std::filesystem::path& folder_or_file);

}  // namespace nemocube
