#include "train/recipe/files.h"

#include "core/error.h"
#include "core/quote.h"
#include "data/datasets/parquet_note.h"
#include "data/datasets/split.h"
#include "data/hf/hf_config.h"
#include "data/hf/hub_cache.h"

namespace nemocube {
namespace {

/// The names, without ending, that the file of a split may have in a folder.
std::vector<std::string> stems_of(DatasetKind kind, const std::string& split) {
  if (kind != DatasetKind::hellaswag) return {split};
  return {split, "hellaswag_" + (split == "validation" ? "val" : split)};  // as HellaSwag is published
}

std::filesystem::path file_in_folder(const std::filesystem::path& folder,
                                     const std::vector<std::string>& stems, const std::string& where,
                                     bool rows_of_json) {
  std::vector<std::string> names;
  for (const std::string& stem : stems)
    for (const char* ending : {".json", ".jsonl", ".ndjson", ".safetensors"}) names.push_back(stem + ending);
  std::string tried;
  for (const std::string& name : names) {
    if (std::filesystem::is_regular_file(folder / name)) return folder / name;
    tried += cat(tried.empty() ? "" : ", ", name);
  }
  fail(where, ": the folder ", folder.string(), " holds none of ", tried,
       rows_of_json ? parquet_note(folder) : "");
}

/// Whether dataset_name says which file.
bool is_named(const DatasetSection& dataset) {
  return dataset.kind == DatasetKind::squad && dataset.path.names.empty();
}

std::filesystem::path file_of(const DatasetSection& dataset, const std::string& name,
                              const std::string& where) {
  const std::string split = DatasetSplit::parse(dataset.split.value_or("train")).name;
  const std::string source = path_or_cached(name, HubKind::dataset).string();
  require(!source.empty(), where, ": is missing");
  const std::string ending = std::filesystem::path(source).extension().string();
  const bool is_file_name = !is_named(dataset) || ending.starts_with(".json") || ending == ".ndjson";
  std::error_code unclear;  // what is there and cannot be reached has its own message
  if (is_file_name && !std::filesystem::exists(source, unclear) && !unclear)
    fail(where, ": ", does_not_exist(source), ending.empty() ? not_in_cache(source, HubKind::dataset) : "",
         dataset.kind == DatasetKind::hellaswag ? "; nothing is downloaded: want a file, or a folder with "
                                                  "hellaswag_train.jsonl, hellaswag_val.jsonl, as "
                                                  "https://github.com/rowanz/hellaswag has them"
                                                : "");
  if (dataset.kind == DatasetKind::squad) return find_squad_file(source, split, where);
  if (std::filesystem::is_directory(source))
    return file_in_folder(source, stems_of(dataset.kind, split), where, dataset.kind != DatasetKind::tokens);
  return source;
}

}  // namespace

std::string dataset_file_key(const DatasetSection& dataset) {
  return cat(dataset.key, '.', is_named(dataset) ? "dataset_name" : dataset.path_key);
}

std::vector<std::filesystem::path> dataset_files(const DatasetSection& dataset, const std::string& where) {
  const std::string key = where.empty() ? dataset_file_key(dataset) : where;
  require(is_named(dataset) || !dataset.path.names.empty(), key, ": is missing");
  if (is_named(dataset)) return {file_of(dataset, dataset.dataset_name, key)};
  std::vector<std::filesystem::path> files;
  for (const std::string& name : dataset.path.names) files.push_back(file_of(dataset, name, key));
  return files;
}

std::filesystem::path dataset_file(const DatasetSection& dataset, const std::string& where) {
  const auto files = dataset_files(dataset, where);
  expect(files.size() == 1, dataset.key, " has ", files.size(), " files");
  return files.front();
}

std::vector<std::filesystem::path> token_files(const DatasetSection& dataset, const std::string& where) {
  std::vector<std::filesystem::path> files;
  const std::string key = where.empty() ? dataset.key + ".paths" : where;
  try {
    for (const std::string& prefix : read_blend(dataset.paths, dataset.splits_to_build).blend.prefixes)
      for (const char* ending : {".idx", ".bin"}) {
        files.emplace_back(prefix + ending);
        std::error_code unclear;  // what is there and cannot be reached has its own message
        require(std::filesystem::exists(files.back(), unclear) || unclear,
                does_not_exist(files.back().string()));
      }
  } catch (const Error& error) {
    fail(key, ": ", error.what());
  }
  return files;
}

std::string does_not_exist(const std::string& path) {
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  if (std::filesystem::path(path).is_absolute() || error) return cat(quote(path), " does not exist");
  return cat(quote(path), " does not exist in ", excerpt(here),
             " (relative paths of a recipe start from the working directory)");
}

std::filesystem::path tokenizer_path(const Recipe& recipe, const DatasetSection& dataset) {
  if (dataset.tokenizer) return *dataset.tokenizer;
  if (recipe.tokenizer) return *recipe.tokenizer;
  require(recipe.model && !recipe.model->path.empty(), recipe.file, ": no tokenizer: want ", dataset.key,
          ".tokenizer, tokenizer.pretrained_model_name_or_path or a model folder");
  return folder_of(recipe.model->path);
}

std::string tokenizer_key(const Recipe& recipe, const DatasetSection& dataset) {
  if (dataset.tokenizer) return dataset.key + ".tokenizer";
  return recipe.tokenizer ? "tokenizer" : "model.pretrained_model_name_or_path";
}

std::filesystem::path existing_tokenizer_path(const Recipe& recipe, const DatasetSection& dataset,
                                              std::string where) {
  const std::filesystem::path path = path_or_cached(tokenizer_path(recipe, dataset), HubKind::model);
  if (where.empty()) where = tokenizer_key(recipe, dataset);
  std::error_code unclear;  // what is there and cannot be reached has its own message
  require(std::filesystem::exists(path, unclear) || unclear, where,
          ": want a folder with a tokenizer.json, or that file; ", does_not_exist(path.string()),
          not_in_cache(path, HubKind::model));
  if (unclear) return path;
  try {
    return find_tokenizer(path);
  } catch (const Error& error) {
    fail(where, ": ", error.what());
  }
}

std::filesystem::path folder_of(const std::filesystem::path& folder_or_file) {
  if (!std::filesystem::is_regular_file(folder_or_file)) return folder_or_file;
  return folder_or_file.has_parent_path() ? folder_or_file.parent_path() : ".";
}

ModelConfig config_of_model(const Recipe& recipe) {
  const auto& known = recipe.model->known_config;
  return known ? *known : read_hf_config(recipe.model->path);
}

std::optional<ModelConfig> config_if_there(const Recipe& recipe) {
  if (!recipe.model) return std::nullopt;
  const std::filesystem::path model = recipe.model->path;
  const bool there =
      std::filesystem::is_regular_file(model) || std::filesystem::exists(model / "config.json");
  return there ? std::optional(config_of_model(recipe)) : std::nullopt;
}

ModelAndAdapter model_and_adapter(const Recipe& recipe) {
  const bool begins_with_adapter = recipe.peft && recipe.peft->adapter_path;
  return {folder_of(recipe.model->path),
          begins_with_adapter ? find_adapter(*recipe.peft->adapter_path) : std::filesystem::path()};
}

}  // namespace nemocube
