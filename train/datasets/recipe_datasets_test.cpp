#include "train/datasets/recipe_datasets.h"

#include <doctest/doctest.h>

#include "data/hf/hf_config.h"
#include "data/json/test_dir.h"
#include "data/megatron/test_token_files.h"
#include "tests/support/paths.h"
#include "train/recipe/files.h"

using namespace nemocube;
using nemocube::testing::slurp;
using nemocube::testing::source_dir;
using nemocube::testing::spit;
using nemocube::testing::TestDir;

namespace {

const std::string source = source_dir().string();

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
  const std::optional<ModelConfig> config = config_if_there(recipe);
  return recipe_dataset(recipe, section, recipe_tokenizer(recipe, section), config ? &*config : nullptr,
                        true);
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
  std::map<std::string, std::string> expected{{"tokenizer.json", all.at("tokenizer.json")}};
  CHECK(files((dir / "mine.json").string()) == expected);
  std::filesystem::create_directory(dir / "additional_chat_templates");
  spit(dir / "additional_chat_templates/tool_use.jinja", "{{ tools }}");
  expected["additional_chat_templates/tool_use.jinja"] = "{{ tools }}";
  CHECK(files((dir / "mine.json").string()) == expected);
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
  CHECK_THROWS_WITH_AS(
      size(", max_steps: 400000000000", ""),
      doctest::Contains(
          "step_scheduler.max_steps: 400000000000 steps of 4 rows take more samples than dataset"),
      Error);
  for (const char* key : {"num_train_samples", "num_val_samples", "num_test_samples"})
    CHECK_THROWS_WITH_AS(recipe("", cat(", ", key, ": 1000000000000000000")),
                         doctest::Contains(cat("dataset.", key, ": want").c_str()), Error);
  CHECK_THROWS_WITH_AS(
      recipe("", "}\npacked_sequence: {packed_sequence_size: 64"),
      doctest::Contains("packed_sequence.packed_sequence_size: is 64, but samples of token files"), Error);
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

TEST_CASE("recipe data sets: messages about a limit name the key that the recipe has") {
  const auto key_of = [](const std::string& keys) {
    return parse_recipe("dataset: {_target_: hellaswag, path: x" + keys + "}\n", "test", {}, RecipeUse::data)
        .dataset->limit_key;
  };
  CHECK(key_of(", num_samples_limit: 3") == "num_samples_limit");
  CHECK(key_of(", limit_dataset_samples: 3") == "limit_dataset_samples");
  CHECK(key_of(", limit_dataset_samples: 3, num_samples_limit: 3") == "limit_dataset_samples");
}

TEST_CASE("recipe data sets: rows are streamed where the recipe says so, and where the file is large") {
  const TestDir dir;
  const std::filesystem::path file = dir / "f.jsonl";
  const std::string row =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  const auto data = [&](const std::string& keys, const std::string& name = "f.jsonl") {
    return dataset_of(parse_recipe(
        cat("tokenizer: {pretrained_model_name_or_path: ", source,
            "/data/samples/tokenizer}\ndataset: {_target_: ", keys, ", path: ", (dir / name).string(), "}\n"),
        "test", {}, RecipeUse::data));
  };
  spit(file, row + "\n");
  spit(dir / "f.json", "[" + row + "]");
  CHECK_FALSE(data("messages")->made_on_demand());
  CHECK_FALSE(data("messages, streaming: false")->made_on_demand());
  const auto streamed = data("messages, streaming: true");
  CHECK(streamed->made_on_demand());
  CHECK(streamed->sample(0).input_ids == data("messages")->sample(0).input_ids);
  CHECK_THROWS_WITH_AS(data("messages, streaming: true", "f.json"), doctest::Contains("want JSON lines"),
                       Error);
  const auto streams = [&](const std::vector<std::string>& names) {
    DatasetSection section;
    section.kind = DatasetKind::messages;
    for (const std::string& name : names) section.path.names.push_back((dir / name).string());
    return bytes_to_stream(section).has_value();
  };
  for (const char* name : {"large.jsonl", "half.ndjson", "large.json"}) spit(dir / name, row);
  std::filesystem::resize_file(dir / "large.jsonl", streamed_bytes);  // holes take no room on the disk
  std::filesystem::resize_file(dir / "large.json", streamed_bytes);
  std::filesystem::resize_file(dir / "half.ndjson", streamed_bytes / 2);
  CHECK(streams({"large.jsonl"}));
  CHECK(streams({"half.ndjson", "half.ndjson"}));
  CHECK_FALSE(streams({"half.ndjson"}));
  CHECK_FALSE(streams({"large.json"}));
  CHECK_FALSE(streams({"large.jsonl", "f.json"}));
  spit(dir / "s.jsonl",
       R"({"id": "a", "context": "c d", "question": "q", "answers": {"text": ["d"], "answer_start": [2]}})");
  CHECK(data("squad, streaming: true", "s.jsonl")->made_on_demand());
  CHECK_FALSE(data("squad", "s.jsonl")->made_on_demand());
  CHECK_THROWS_WITH_AS(data("mock, streaming: true"), doctest::Contains("streaming"), Error);
}
