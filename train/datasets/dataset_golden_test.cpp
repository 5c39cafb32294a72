// Compares rows with those of NeMo AutoModel's own classes (tools/goldens/make_datasets.py).
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "data/datasets/describe.h"
#include "data/json/json.h"
#include "data/json/test_dir.h"
#include "data/text/moment.h"
#include "tests/support/paths.h"
#include "train/datasets/recipe_datasets.h"

using namespace nemocube;

namespace {

using testing::slurp;
using testing::spit;
using testing::TestDir;
namespace fs = std::filesystem;

const fs::path& source = testing::source_dir();

/// A tokenizer of the goldens in a folder of its own, with the template of the case where it has one.
void make_tokenizer(const fs::path& folder, const Json& golden) {
  const std::string name = golden.value("tokenizer", "samples");
  const fs::path from =
      name == "samples" ? source / "data/samples/tokenizer" : source / "tests/goldens/tokenizer" / name;
  spit(folder / "tokenizer.json", slurp(from / "tokenizer.json"));
  spit(folder / "tokenizer_config.json",
       R"({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>", "unk_token": "<unk>"})");
  if (golden.contains("template_file"))
    spit(folder / "chat_template.jinja",
         slurp(source / "tests/goldens/chat" / golden["template_file"].get<std::string>()));
  const Json chat_template = golden.value("template", Json());
  if (chat_template.is_string())
    spit(folder / "chat_template.jinja", chat_template.get<std::string>() + "\n");
}

Recipe recipe_of(const Json& golden, const fs::path& folder) {
  Json dataset{{"_target_", "nemo_automodel.components.datasets.llm." + golden["class"].get<std::string>()},
               {"path", (folder / golden["file"].get<std::string>()).string()},
               {"tokenizer", folder.string()}};
  for (const char* keys : {"arguments", "own"})
    for (const auto& [key, value] : golden[keys].items()) dataset[key] = value;
  return parse_recipe(dump_json({{"dataset", dataset}}), "golden.yaml", {}, RecipeUse::data);
}

using Ids = std::vector<std::int64_t>;

TEST_CASE("data sets: rows are those of AutoModel's classes") {
  const Json goldens = read_json_file(source / "tests/goldens/datasets/rows.json");
  REQUIRE(goldens["cases"].size() >= 57);
  for (const Json& golden : goldens["cases"]) {
    CAPTURE(golden["class"].get<std::string>());
    CAPTURE(golden["file"].get<std::string>());
    CAPTURE(golden["arguments"].dump());
    CAPTURE(golden.value("template_file", ""));
    const TestDir dir;
    make_tokenizer(dir.path(), golden);
    for (const auto& [name, text] : goldens["files"].items()) spit(dir / name, text.get<std::string>());
    Recipe recipe = recipe_of(golden, dir.path());
    recipe.moment = parse_moment(goldens["day"]);  // some templates show it
    const auto dataset =
        recipe_dataset(recipe, *recipe.dataset, recipe_tokenizer(recipe, *recipe.dataset), nullptr, false);
    REQUIRE(dataset->size() == static_cast<std::int64_t>(golden["rows"].size()));
    for (std::int64_t i = 0; i < dataset->size(); ++i) {
      CAPTURE(i);
      const Json& want = golden["rows"][static_cast<std::size_t>(i)];
      const Json row = inspect_row(dataset->sample(i), nullptr, recipe.dataset->unshifted);
      CHECK(row["input_ids"].get<Ids>() == want["input_ids"].get<Ids>());
      if (want.contains("labels")) CHECK(row["labels"].get<Ids>() == want["labels"].get<Ids>());
      if (recipe.dataset->unshifted) CHECK(row["loss_mask"].get<Ids>() == want["loss_mask"].get<Ids>());
    }
  }
}

}  // namespace
