#include "train/recipe/recipe.h"
#include "data/datasets/split.h"

#include <algorithm>

#include "train/recipe/fields.h"
#include "train/recipe/writer.h"

namespace nemocube {
namespace {

std::vector<std::string> all_key_paths() {
  std::vector<std::string> paths;
  recipe::KeyList list(paths);
  Recipe empty;
  recipe::fields(list, empty);
  return paths;
}

/// A hub id is two words with one slash: no place in a file system that starts here, but nearly one.
bool looks_like_hub_id(const std::string& name) {
  const auto slash = name.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < name.size() &&
         name.find('/', slash + 1) == std::string::npos && name[0] != '.' && name[0] != '~';
}

void check_model(const Recipe& recipe) {
  require(recipe.model.has_value(), recipe.file, ": the section 'model' is missing");
  const std::string& path = recipe.model->path;
  require(!path.empty(), recipe.file, ": model.pretrained_model_name_or_path is missing");
  if (std::filesystem::exists(path)) return;
  const std::string where = cat(recipe.file, ": model.pretrained_model_name_or_path: '", path, "' ");
  if (looks_like_hub_id(path))
    fail(where,
         "is not a folder here, and nothing is downloaded at run time. Download the model of that name "
         "from the Hugging Face Hub (config.json, *.safetensors, tokenizer files), for example with `hf "
         "download ",
         path, " --local-dir ", path, "`, or name the folder that holds it");
  fail(where, "does not exist; want a folder with config.json and *.safetensors");
}

void check_single_rank(const Recipe& recipe) {
  const DistributedSection& grid = recipe.distributed;
  const auto want_one = [&](const char* key, std::int64_t size) {
    require(
        size == 1, recipe.file, ": distributed.", key, " = ", size,
        ": the process grid is not in this build, so every size must be 1 (or absent); override with --set "
        "distributed.",
        key, "=1");
  };
  want_one("tp_size", grid.tp_size);
  want_one("pp_size", grid.pp_size);
  want_one("cp_size", grid.cp_size);
  want_one("ep_size", grid.ep_size);
  want_one("dp_size", grid.dp_size.value_or(1));
  want_one("dp_replicate_size", grid.dp_replicate_size.value_or(1));
}

void check_train(const Recipe& recipe) {
  require(recipe.dataset.has_value(), recipe.file, ": the section 'dataset' is missing");
  require(recipe.optimizer.has_value(), recipe.file, ": the section 'optimizer' is missing");
  grad_accumulation_steps(recipe, 1);
  const auto& batch = recipe.dataloader.batch_size;
  require(!batch || *batch == recipe.step_scheduler.local_batch_size, recipe.file,
          ": dataloader.batch_size = ", batch.value_or(0),
          " differs from step_scheduler.local_batch_size = ", recipe.step_scheduler.local_batch_size);
  const std::string& best = recipe.checkpoint.best_metric_key;
  require(best == "default" || recipe.validation_datasets.contains(best), recipe.file,
          ": checkpoint.best_metric_key: there is no section validation_dataset_", best);
}

void check_use(const Recipe& recipe, RecipeUse use) {
  switch (use) {
    case RecipeUse::train:
      check_single_rank(recipe);
      check_train(recipe);
      check_model(recipe);
      break;
    case RecipeUse::evaluate:
      check_single_rank(recipe);
      check_model(recipe);
      require(!recipe.validation_datasets.empty(), recipe.file,
              ": the section 'validation_dataset' is missing");
      break;
    case RecipeUse::data:
      require(recipe.dataset.has_value() || !recipe.validation_datasets.empty(), recipe.file,
              ": the section 'dataset' is missing");
      break;
    case RecipeUse::schedule:
      require(
          recipe.step_scheduler.max_steps.has_value(), recipe.file,
          ": step_scheduler.max_steps is missing; a schedule is made without the data, so this key says how "
          "long it is (--set step_scheduler.max_steps=N)");
      break;
  }
}

/// A schedule needs three sections. The others may ask for what this build lacks; only their names must be
/// right, so that a misspelt lr_scheduler does not pass for a recipe without one.
void keep_schedule_sections(recipe::Value& root, const std::vector<std::string>& known_paths) {
  std::erase_if(root.entries, [&](const auto& entry) {
    const std::string& key = entry.first;
    if (key == "step_scheduler" || key == "optimizer" || key == "lr_scheduler") return false;
    return key.starts_with("validation_dataset") ||
           std::find(known_paths.begin(), known_paths.end(), key) != known_paths.end();
  });
}

Recipe read_recipe(recipe::Value root, const std::string& name, const std::vector<std::string>& overrides,
                   RecipeUse use) {
  require(root.kind != recipe::Value::Kind::scalar && root.kind != recipe::Value::Kind::list, name,
          ": want a recipe (sections of keys), found a list or a single value");
  for (const std::string& assignment : overrides) recipe::apply_override(root, assignment);
  recipe::Reading reading{.file = name, .known_paths = all_key_paths(), .no_effect = {}};
  if (use == RecipeUse::schedule) keep_schedule_sections(root, reading.known_paths);
  recipe::Reader reader(reading, root.kind == recipe::Value::Kind::map ? &root : nullptr, "");
  Recipe result;
  result.file = name;
  recipe::fields(reader, result);
  reader.finish();
  result.no_effect = std::move(reading.no_effect);
  check_use(result, use);
  return result;
}

}  // namespace

Recipe load_recipe(const std::filesystem::path& path, const std::vector<std::string>& overrides,
                   RecipeUse use) {
  return read_recipe(recipe::read_yaml(path), path.string(), overrides, use);
}

Recipe parse_recipe(const std::string& yaml, const std::string& name,
                    const std::vector<std::string>& overrides, RecipeUse use) {
  return read_recipe(recipe::parse_yaml(yaml, name), name, overrides, use);
}

std::string describe(const Recipe& recipe) {
  std::string out;
  recipe::Writer writer(out);
  Recipe copy = recipe;
  recipe::fields(writer, copy);
  return out;
}

std::int64_t grad_accumulation_steps(const Recipe& recipe, std::int64_t dp) {
  expect(dp > 0, "grad_accumulation_steps: dp = ", dp);
  const std::int64_t global = recipe.step_scheduler.global_batch_size;
  const std::int64_t local = recipe.step_scheduler.local_batch_size;
  const std::string ranks = dp == 1 ? "" : cat(" x ", dp, " data-parallel ranks");
  // Compared by division: local * dp may overflow.
  const bool whole = global % local == 0 && (global / local) % dp == 0;
  if (whole) return global / local / dp;
  const std::int64_t unit = local <= global ? local * dp : local;
  fail(recipe.file, ": step_scheduler.global_batch_size = ", global,
       " must be a multiple of local_batch_size = ", local, ranks,
       "; the nearest that is: ", std::max(global / unit, std::int64_t{1}) * unit);
}

namespace {

std::filesystem::path file_in_folder(const std::filesystem::path& folder, const std::string& split,
                                     const std::string& where) {
  std::vector<std::string> names;
  for (const char* ending : {".json", ".jsonl", ".ndjson", ".safetensors"}) names.push_back(split + ending);
  std::string tried;
  for (const std::string& name : names) {
    if (std::filesystem::is_regular_file(folder / name)) return folder / name;
    tried += cat(tried.empty() ? "" : ", ", name);
  }
  fail(where, "the folder ", folder.string(), " holds none of ", tried);
}

}  // namespace

std::filesystem::path dataset_file(const DatasetSection& dataset) {
  const std::string split = DatasetSplit::parse(dataset.split.value_or("train")).name;
  if (dataset.kind == DatasetKind::squad)
    return find_squad_file(dataset.path.empty() ? dataset.dataset_name : dataset.path, split);
  const std::string& source = dataset.path;
  const std::string where = dataset.key + ".path: ";
  require(!source.empty(), where, "is missing");
  if (std::filesystem::is_directory(source)) return file_in_folder(source, split, where);
  if (std::filesystem::exists(source)) return source;
  fail(where, "'", source, "' does not exist");
}

std::filesystem::path tokenizer_path(const Recipe& recipe, const DatasetSection& dataset) {
  if (dataset.tokenizer) return *dataset.tokenizer;
  if (recipe.tokenizer) return *recipe.tokenizer;
  require(recipe.model && !recipe.model->path.empty(), recipe.file, ": no tokenizer: want ", dataset.key,
          ".tokenizer, tokenizer.pretrained_model_name_or_path or a model folder");
  return folder_of(recipe.model->path);
}

std::filesystem::path folder_of(const std::filesystem::path& folder_or_file) {
  if (!std::filesystem::is_regular_file(folder_or_file)) return folder_or_file;
  return folder_or_file.has_parent_path() ? folder_or_file.parent_path() : ".";
}

}  // namespace nemocube
