#include "train/datasets/chat_template.h"

#include <doctest/doctest.h>

#include "data/json/test_dir.h"
#include "train/datasets/recipe_datasets.h"

using namespace nemocube;
using nemocube::testing::slurp;
using nemocube::testing::spit;
using nemocube::testing::TestDir;

namespace {

const std::string samples = NEMOCUBE_SOURCE_DIR "/data/samples";

Recipe recipe_with(const std::string& tokenizer, const std::string& dataset) {
  return parse_recipe(cat("dataset: {", dataset, ", tokenizer: ", tokenizer, "}\n"), "r.yaml", {},
                      RecipeUse::data);
}

/// The message of the Error with which the tokenizer of the data set is refused, or nothing.
std::string refusal(const std::string& tokenizer, const std::string& dataset) {
  const Recipe recipe = recipe_with(tokenizer, dataset);
  try {
    return recipe_tokenizer(recipe, *recipe.dataset) ? "" : "no tokenizer";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("chat templates: where a tokenizer keeps one") {
  const auto found = [](const std::string& file, const std::string& text) -> std::string {
    const TestDir dir;
    spit(dir / file, text);
    const auto path = find_chat_template(dir.path());
    return path ? path->filename().string() : "";
  };
  CHECK(found("chat_template.jinja", "{{ x }}") == "chat_template.jinja");
  CHECK(found("chat_template.json", "{}") == "chat_template.json");
  CHECK(found("tokenizer_config.json", R"({"chat_template": "{{ x }}"})") == "tokenizer_config.json");
  CHECK(found("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "x"}]})") ==
        "tokenizer_config.json");
  CHECK(found("tokenizer_config.json", R"({"chat_template": null})") == "");
  CHECK(found("tokenizer_config.json", "{}") == "");
  CHECK(found("template.jinja", "x") == "");
}

TEST_CASE("chat templates: an Error unless the recipe says null, or rows have a fixed length") {
  const TestDir dir;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    spit(dir / name, slurp(samples + "/tokenizer/" + name));
  const std::string tokenizer = dir.path().string(), squad = "_target_: squad, dataset_name: x",
                    messages = "_target_: messages, path: x";
  CHECK(refusal(tokenizer, squad) == "");
  spit(dir / "chat_template.jinja", "{{ messages }}");
  for (const std::string& dataset : {squad, messages}) {
    const std::string message = refusal(tokenizer, dataset);
    CAPTURE(message);
    CHECK(message.starts_with("dataset.chat_template is absent"));
    CHECK(message.find((dir / "chat_template.jinja").string()) != std::string::npos);
    CHECK(message.find("dataset.chat_template: null") != std::string::npos);
    CHECK(refusal(tokenizer, dataset + ", chat_template: null") == "");
    CHECK(refusal(tokenizer, dataset + ", chat_template: none") == "");
    CHECK(refusal(tokenizer + "/tokenizer.json", dataset) == message);
    CHECK(refusal(tokenizer, dataset + ", chat_template: a.jinja").find("want null") != std::string::npos);
    CHECK(refusal(samples + "/tokenizer", dataset + ", chat_template: a.jinja") ==
          refusal(tokenizer, dataset + ", chat_template: a.jinja"));
  }
  CHECK(refusal(tokenizer, squad + ", truncation: true, seq_length: 8") == "");
  CHECK(refusal(tokenizer, squad + ", truncation: true") != "");
  CHECK(refusal(tokenizer, squad + ", seq_length: 8") != "");
  CHECK(refusal(tokenizer, messages + ", truncation: true, seq_length: 8") != "");
}
