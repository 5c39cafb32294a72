#include "train/datasets/recipe_datasets.h"

#include <doctest/doctest.h>

#include "data/hf/hf_config.h"
#include "data/json/test_dir.h"
#include "data/megatron/test_token_files.h"
#include "train/recipe/files.h"

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

/// Of the validation section of this name, or of the training section.
std::shared_ptr<const Dataset> dataset_of(const Recipe& recipe, const std::string& validation = "") {
  const DatasetSection& section =
      validation.empty() ? *recipe.dataset : recipe.validation_datasets.at(validation);
  return recipe_dataset(recipe, section, recipe_tokenizer(recipe, section), true);
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

TEST_CASE("recipe data sets: how many samples of token files a run takes, and which ids") {
  const TestDir dir;
  testing::write_token_files(dir / "a", {5, 3, 7, 2, 6});
  const auto recipe = [&](const std::string& steps, const std::string& extra, const std::string& name = "") {
    return parse_recipe(cat("step_scheduler: {global_batch_size: 4, local_batch_size: 4", steps,
                            "}\ndataset: {_target_: MegatronPretraining, paths: ", (dir / "a").string(), name,
                            ", seq_length: 4, split: '1'", extra, "}\n"),
                        "test", {}, RecipeUse::data);
  };
  const auto size = [&](const std::string& steps, const std::string& extra) {
    return dataset_of(recipe(steps, extra))->size();
  };
  CHECK_FALSE(recipe("", "").dataloader.shuffle);
  CHECK(size("", "") == 5);
  CHECK(size(", max_steps: 3", "") == 12);
  CHECK(size(", max_steps: 3", ", num_train_samples: 20") == 20);
  CHECK_THROWS_WITH_AS(
      size(", max_steps: 3", ", num_train_samples: 11"),
      doctest::Contains("dataset.num_train_samples: 3 steps take 12 samples; want that many"), Error);
  CHECK(dataset_of(
            parse_recipe(
                cat("step_scheduler: {max_steps: 3}\nvalidation_dataset: {_target_: megatron, paths: ",
                    (dir / "a").string(), ", seq_length: 4, split: '0,1', splits_to_build: validation}\n"),
                "test", {}, RecipeUse::data),
            "default")
            ->size() == 5);
  CHECK(token_files(*recipe("", "").dataset).size() == 2);
  CHECK_THROWS_WITH_AS(token_files(*recipe("", "", "b").dataset), doctest::Contains("dataset.paths: "),
                       Error);

  spit(dir / "config.json", slurp(model + "/config.json"));
  Recipe with_model = recipe("", "");
  with_model.model.emplace().path = dir.path().string();
  const std::int64_t vocabulary = read_hf_config(dir.path()).vocab_size;
  testing::write_token_files(dir / "a", {30}, vocabulary);
  CHECK_THROWS_WITH_AS(dataset_of(with_model)->sample(0), doctest::Contains("want ids from 0 to below"),
                       Error);
}
