#pragma once
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/support/paths.h"
#include "train/recipe/recipe.h"

/// Small recipes, and the messages about wrong ones.
namespace nemocube::testing {

inline const std::string model_folder = source_path("tests/goldens/train20");

/// A minimal recipe that trains, with more lines added.
inline std::string with(const std::string& more, const std::string& scheduler = "max_steps: 5") {
  return cat("step_scheduler: {global_batch_size: 4, local_batch_size: 2, ", scheduler, "}\n",
             "model: {pretrained_model_name_or_path: ", model_folder, "}\n",
             "dataset: {_target_: tokens, path: ", model_folder, "/tokens.safetensors}\n",
             "optimizer: {lr: 1e-3}\n", more);
}

inline Recipe parse(const std::string& yaml, const std::vector<std::string>& overrides = {},
                    RecipeUse use = RecipeUse::data) {
  return parse_recipe(yaml, "r.yaml", overrides, use);
}

inline std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides = {},
                            RecipeUse use = RecipeUse::data) {
  try {
    parse(yaml, overrides, use);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline std::string error_with(const std::string& line) {
  return error_of(cat("dataset: {_target_: mock}\n", line));
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace nemocube::testing
