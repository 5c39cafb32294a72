#include "train/recipe/recipe.h"

#include <algorithm>

#include "core/error.h"
#include "train/recipe/fields.h"
#include "train/recipe/key_list.h"
#include "train/recipe/reader.h"
#include "train/recipe/rules.h"

namespace nemocube {
namespace {

/// A schedule needs three sections. The others may ask for what this build lacks; only their names must be
/// right, so that a misspelt lr_scheduler does not pass for a recipe without one.
void keep_schedule_sections(recipe::Value& root) {
  const auto& known = recipe::known_paths();
  std::erase_if(root.entries, [&](const recipe::Entry& entry) {
    const std::string& key = entry.key;
    if (key == "step_scheduler" || key == "optimizer" || key == "lr_scheduler") return false;
    return key.starts_with("validation_dataset") || std::ranges::count(known, key) > 0;
  });
}

Recipe read_recipe(recipe::Value root, const std::string& name, const std::vector<std::string>& overrides,
                   RecipeUse use) {
  require(root.kind != recipe::Value::Kind::scalar && root.kind != recipe::Value::Kind::list, name,
          ": want a recipe (sections of keys), found a list or a single value");
  recipe::Reading reading(name, root);
  for (const std::string& assignment : overrides)
    reading.attempt(nullptr, assignment.substr(0, assignment.find('=')),
                    [&] { recipe::apply_override(root, assignment); });
  if (use == RecipeUse::schedule) keep_schedule_sections(root);
  recipe::Reader reader(reading, root, "", "");
  Recipe result;
  result.file = name;
  recipe::fields(reader, result);
  reader.finish();
  recipe::apply_rules(result, reading, use);
  reading.throw_problems();
  result.no_effect = std::move(reading.no_effect);
  result.warnings = std::move(reading.warnings);
  result.interpolated = std::move(reading.interpolated);
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

std::int64_t microbatches_of_step(const Recipe& recipe, std::int64_t dp) {
  const std::int64_t passes = grad_accumulation_steps(recipe, dp);
  if (!recipe.distributed.pipeline) return passes;
  const std::int64_t rows = recipe.step_scheduler.local_batch_size;
  const std::int64_t unit = recipe.distributed.pipeline->pp_microbatch_size;
  require(rows % unit == 0, recipe.file, ": step_scheduler.local_batch_size = ", rows,
          " must be a multiple of distributed.pipeline.pp_microbatch_size = ", unit,
          "; the nearest that is: ", std::max(rows / unit, std::int64_t{1}) * unit);
  return passes * (rows / unit);
}

}  // namespace nemocube
