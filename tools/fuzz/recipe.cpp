// The reader of recipes. Input: YAML.
#include "train/recipe/recipe.h"
#include "tools/fuzz/fuzz.h"

using namespace nemocube;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string yaml(fuzz::text_of(data, size));
  bool accepted = false;
  for (const RecipeUse use : {RecipeUse::plan, RecipeUse::data})
    accepted |= fuzz::allow_refusal([&] { describe(parse_recipe(yaml, "recipe.yaml", {}, use)); });
  return fuzz::keep_if(accepted);
}
