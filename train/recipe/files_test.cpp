#include "train/recipe/files.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "data/json/test_dir.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"

using namespace nemocube;
using nemocube::testing::source_path;

namespace {

const std::string model_folder = source_path("tests/goldens/train20");

Recipe parse(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return parse_recipe(yaml, "r.yaml", overrides, RecipeUse::data);
}

}  // namespace

TEST_CASE("dataset files: a path, a folder by split, or advice") {
  DatasetSection d;
  d.dataset_name = source_path("data/samples");
  CHECK(dataset_file(d).filename() == "train.json");
  d.split = "validation[:10]";
  CHECK(dataset_file(d).filename() == "validation.json");
  d.split = "test";
  CHECK_THROWS_AS(dataset_file(d), Error);
  d.dataset_name = "rajpurkar/squad";
  CHECK_THROWS_WITH(dataset_file(d), doctest::Contains("train-v1.1.json"));
  d.path = {{"/does/not/exist.json"}};
  CHECK_THROWS_WITH(dataset_file(d), doctest::Contains("/does/not/exist.json"));
  d.kind = DatasetKind::hellaswag;
  CHECK_THROWS_WITH(dataset_file(d),
                    doctest::Contains("nothing is downloaded: want a file, or a folder with "));
  const testing::TestDir published;
  for (const char* name : {"hellaswag_train.jsonl", "hellaswag_val.jsonl"})
    testing::spit(published / name, "");
  d.path = {{published.path().string()}};
  d.split = "validation";
  CHECK(dataset_file(d).filename() == "hellaswag_val.jsonl");
  d.split = std::nullopt;
  CHECK(dataset_file(d).filename() == "hellaswag_train.jsonl");
  const testing::TestDir snapshot;  // as the Hub has HellaSwag and SQuAD
  std::filesystem::create_directory(snapshot / "data");
  for (const char* name : {"README.md", "data/train-0.parquet", "data/test-0.parquet"})
    testing::spit(snapshot / name, "");
  d.path = {{snapshot.path().string()}};
  for (const DatasetKind kind : {DatasetKind::hellaswag, DatasetKind::squad}) {
    d.kind = kind;
    CHECK_THROWS_WITH(dataset_file(d), doctest::Contains("train.ndjson"));
    CHECK_THROWS_WITH(dataset_file(d),
                      doctest::Contains("; there is data/test-0.parquet, but Parquet is not read: want the "
                                        "same rows as JSON"));
  }
  for (const char* name : {"test", "train"})
    std::filesystem::remove(snapshot / cat("data/", name, "-0.parquet"));
  CHECK_THROWS_WITH(dataset_file(d), doctest::Contains("train-v2.0.json"));
  CHECK(testing::message_of([&] { dataset_file(d); }).find("Parquet") == std::string::npos);
  std::filesystem::create_directories(snapshot / "a/b/c/d");
  testing::spit(snapshot / "a/b/c/d/x.parquet", "");
  CHECK(testing::message_of([&] { dataset_file(d); }).find("Parquet") == std::string::npos);
  testing::spit(snapshot / "a/b/c/x.parquet", "");
  CHECK_THROWS_WITH(dataset_file(d), doctest::Contains("there is a/b/c/x.parquet"));
  d.path = {{"/does/not/exist.json"}};
  d.kind = DatasetKind::tokens;
  CHECK_THROWS_WITH(dataset_file(d), "dataset.path: '/does/not/exist.json' does not exist");
  d.kind = DatasetKind::messages;
  d.path = {{published.path().string() + "/hellaswag_val.jsonl", source_path("data/samples")}};
  const auto files = dataset_files(d);
  REQUIRE(files.size() == 2);
  CHECK(files[0].filename() == "hellaswag_val.jsonl");
  CHECK(files[1].filename() == "train.json");
  d.path.names.push_back("/does/not/exist.json");
  CHECK_THROWS_WITH(dataset_files(d), "dataset.path: '/does/not/exist.json' does not exist");
  const Recipe r = parse(
      "validation_dataset: {_target_: tokens, path: absent}\nvalidation_dataset_b: {_target_: tokens, path: "
      "absent}\n");
  CHECK_THROWS_WITH(dataset_file(r.validation_datasets.at("default")),
                    doctest::Contains("validation_dataset.path: 'absent'"));
  CHECK_THROWS_WITH(dataset_file(r.validation_datasets.at("b")),
                    doctest::Contains("validation_dataset_b.path: 'absent'"));
}

TEST_CASE("dataset files: messages name the key that the recipe has, with its line") {
  const auto refused = [](const std::string& dataset) {
    return testing::message_of(
        [&] { parse_recipe("dataset: {" + dataset + "}\n", "r.yaml", {}, RecipeUse::train); });
  };
  for (const auto& [keys, where] :
       {std::pair{"_target_: hellaswag, path_or_dataset: rowan/none", "r.yaml:1: dataset.path_or_dataset: "},
        {"_target_: column_mapped, path_or_dataset_id: none.jsonl, column_mapping: {question: q, answer: a}",
         "r.yaml:1: dataset.path_or_dataset_id: "},
        {"_target_: hellaswag, path: none.jsonl", "r.yaml:1: dataset.path: "}}) {
    const std::string message = refused(keys);
    CAPTURE(message);
    CHECK(message.find(cat("\n  ", where)) != std::string::npos);
    CHECK(message.find("does not exist") != std::string::npos);
  }
}

TEST_CASE("model and tokenizer of a run: the newest checkpoint's") {
  const testing::TestDir dir;
  const std::filesystem::path run = dir / "run", model = run / "epoch_0_step_9" / "model";
  std::filesystem::create_directories(model);
  for (const char* file : {"config.json", "tokenizer.json"}) testing::spit(model / file, "{}");
  std::filesystem::create_directory_symlink("epoch_0_step_9", run / "LATEST");
  testing::spit(dir / "a.json", "[]");
  const std::string yaml =
      cat("dataset: {_target_: squad, path: ", (dir / "a.json").string(),
          "}\noptimizer: {}\nmodel: {pretrained_model_name_or_path: ", run.string(), "}\n");
  const auto loaded = [&](const std::vector<std::string>& overrides) {
    return parse_recipe(yaml, "r.yaml", overrides, RecipeUse::train);
  };
  for (const std::string& named : {run.string(), (run / "LATEST").string(), model.string()}) {
    CAPTURE(named);
    const Recipe r =
        loaded({cat("model.pretrained_model_name_or_path=", named), cat("dataset.tokenizer=", named)});
    CHECK(r.model->path == model);
    CHECK(existing_tokenizer_path(r, *r.dataset) == model);
  }
  const Recipe r = loaded({});
  CHECK(existing_tokenizer_path(r, *r.dataset) == model);
  CHECK(loaded({cat("model={config: ", (model / "config.json").string(), "}")}).model->path ==
        model / "config.json");
  std::filesystem::remove(model / "config.json");
  std::filesystem::remove(model / "tokenizer.json");
  CHECK_THROWS_WITH(
      loaded({}),
      doctest::Contains(
          cat("r.yaml:3: model.pretrained_model_name_or_path: ", run.string(), ": holds no model").c_str()));
  CHECK_THROWS_WITH(loaded({cat("dataset.tokenizer=", run.string())}),
                    doctest::Contains("--set dataset.tokenizer: "));
}

TEST_CASE("the tokenizer of a dataset, of the recipe, of the model") {
  const std::string base = "model: {pretrained_model_name_or_path: m}\ndataset: {_target_: squad}\n";
  const auto folder = [&](const std::string& more, const std::vector<std::string>& set = {}) {
    const Recipe r = parse(base + more, set);
    return tokenizer_path(r, *r.dataset).string();
  };
  CHECK(folder("") == "m");
  CHECK(folder("tokenizer: {pretrained_model_name_or_path: t}") == "t");
  CHECK(folder("tokenizer: t", {"dataset.tokenizer=d"}) == "d");
  CHECK(folder("", {"dataset.tokenizer.pretrained_model_name_or_path=d"}) == "d");
  const std::string golden = model_folder;
  CHECK(folder("", {cat("model={config: ", golden, "/config.json}")}) == golden);
  CHECK(folder_of(golden) == golden);
  CHECK(folder_of(golden + "/config.json") == golden);
  CHECK(folder_of("no such path") == "no such path");
}
