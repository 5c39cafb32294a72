#include "train/datasets/recipe_datasets.h"

#include <doctest/doctest.h>

#include "data/json/test_dir.h"

using namespace nemocube;
using nemocube::testing::slurp;
using nemocube::testing::spit;
using nemocube::testing::TestDir;

namespace {

const std::string source = NEMOCUBE_SOURCE_DIR;

const std::string model = source + "/configs/nemotron_h_tiny";

Recipe sample_recipe(const std::string& tokenizer, const std::string& extra = "",
                     const std::string& config = model) {
  return parse_recipe("model: {_target_: from_config, config: {pretrained_model_name_or_path: " + config +
                          "}}\ntokenizer: {pretrained_model_name_or_path: " + tokenizer +
                          "}\ndataset: {_target_: squad, dataset_name: " + source +
                          "/data/samples/validation.json" + extra + "}\n",
                      "test", {}, RecipeUse::data);
}

std::shared_ptr<const Dataset> dataset_of(const Recipe& recipe) {
  return recipe_dataset(recipe, *recipe.dataset, recipe_tokenizer(recipe, *recipe.dataset), true);
}

}  // namespace

TEST_CASE("recipe data sets: EOS comes from the model's config where the tokenizer names none") {
  const TestDir bare;
  spit(bare / "tokenizer.json", slurp(source + "/data/samples/tokenizer/tokenizer.json"));
  const auto named = dataset_of(sample_recipe(source + "/data/samples/tokenizer"));
  const auto unnamed = dataset_of(sample_recipe(bare.path().string()));
  CHECK(unnamed->sample(0).labels.back() == 2);
  CHECK(unnamed->sample(0).labels == named->sample(0).labels);
  const auto by_file = dataset_of(sample_recipe(bare.path().string(), "", model + "/config.json"));
  CHECK(by_file->sample(0).labels == named->sample(0).labels);
}

TEST_CASE("recipe data sets: a tokenizer travels with the model, by folder, file or the name of any file") {
  const std::string folder = source + "/data/samples/tokenizer";
  const auto files = [](const std::string& tokenizer) {
    const Recipe r = sample_recipe(tokenizer);
    return tokenizer_files(r, *r.dataset);
  };
  const auto all = files(folder);
  CHECK(all.at("tokenizer.json") == slurp(folder + "/tokenizer.json"));
  CHECK(all.contains("tokenizer_config.json"));
  CHECK(files(folder + "/tokenizer.json") == all);
  const TestDir dir;
  spit(dir / "config.json", "{}");
  spit(dir / "mine.json", all.at("tokenizer.json"));
  CHECK(files((dir / "mine.json").string()) ==
        std::map<std::string, std::string>{{"tokenizer.json", all.at("tokenizer.json")}});
}

TEST_CASE("recipe data sets: what this build cannot do is refused, not ignored") {
  const std::string tokenizer = source + "/data/samples/tokenizer";
  CHECK_THROWS_WITH_AS(dataset_of(sample_recipe(tokenizer, ", chat_template: x")),
                       doctest::Contains("dataset.chat_template"), Error);
  const Recipe r = parse_recipe(
      "validation_dataset_b: {_target_: squad, chat_template: x, tokenizer: " + tokenizer + "}\n", "test", {},
      RecipeUse::data);
  const DatasetSection& b = r.validation_datasets.at("b");
  CHECK_THROWS_WITH_AS(recipe_dataset(r, b, recipe_tokenizer(r, b), false),
                       doctest::Contains("validation_dataset_b.chat_template"), Error);
}
