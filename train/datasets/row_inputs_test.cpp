#include "train/datasets/row_inputs.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/datasets/mock.h"
#include "data/json/atomic_file.h"
#include "data/json/test_dir.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

DatasetSection section_of(const std::string& yaml, Recipe& recipe) {
  recipe = parse_recipe("dataset: {" + yaml + "}", "recipe", {}, RecipeUse::data);
  return *recipe.dataset;
}

std::string text_of(const RowInputs& inputs) {
  std::string text;
  for (const RowInput& input : inputs) text += name_of(input) + "\n";
  return text;
}

}  // namespace

TEST_CASE("row inputs: the tokenizer's files, and the texts of the templates in use, wherever they are") {
  const TestDir dir;
  std::filesystem::copy(source_dir() / "data/samples/tokenizer", dir / "t",
                        std::filesystem::copy_options::recursive);
  std::filesystem::create_directories(dir / "t/additional_chat_templates");
  spit(dir / "t/chat_template.jinja", "plain");
  spit(dir / "t/additional_chat_templates/tool_use.jinja", "with tools");
  spit(dir / "t/additional_chat_templates/unused.jinja", "unused");
  spit(dir / "named.jinja", "{{ strftime_now('%d') }}");
  Recipe recipe;
  const std::string rows = cat("_target_: messages, path: x.jsonl, tokenizer: ", (dir / "t").string());
  DatasetSection section = section_of(rows, recipe);
  const std::string folder = (dir / "t").string();
  const std::string files =
      cat(folder, "/tokenizer.json (tokenizer.json)\n", folder,
          "/tokenizer_config.json (tokenizer_config.json)\n", folder,
          "/special_tokens_map.json (special_tokens_map.json)\n", folder, " (special tokens)\n");
  CHECK(text_of(tokenizer_inputs(recipe, section)) ==
        cat(files, folder, "/chat_template.jinja (chat template)\n", folder,
            "/additional_chat_templates/tool_use.jinja (chat template for tools)\n"));
  CHECK(tokenizer_inputs(recipe, section).back().sum == sum_of("with tools"));
  section = section_of(cat(rows, ", chat_template: ", (dir / "named.jinja").string()), recipe);
  CHECK(text_of(tokenizer_inputs(recipe, section)) ==
        cat(files, (dir / "named.jinja").string(), " (chat template)\n"));
  section = section_of("_target_: tokens, path: x.safetensors", recipe);
  CHECK(tokenizer_inputs(recipe, section).empty());
}

TEST_CASE("row inputs: rows from the first to the last are looked at") {
  MockOptions options;
  options.vocab_size = 100;
  options.seq_length = 4;
  options.num_samples = 1001;
  const RowInputs many = sampled_rows(MockDataset(options));
  REQUIRE(many.size() == 16);
  CHECK(many.front().role == "row 0");
  CHECK(many.back().role == "row 1000");
  options.num_samples = 1;
  CHECK(sampled_rows(MockDataset(options)).size() == 1);
}

TEST_CASE("row inputs: a checkpoint's rows go on with the same contents only, which may have moved") {
  const RowInputs written{{"tokenizer.json", "/t/tokenizer.json", {9, 1}},
                          {"data file 1", "/a.jsonl", {10, 2}}};
  RowInputs now = written;
  const auto says = [&] { return message_of([&] { want_same_rows(written, now); }); };
  now[1].place = "/b.jsonl";
  CHECK(says() == "no error");
  CHECK(change_of_rows(written, now).empty());
  now[1].sum.crc32c = 3;
  const std::string way_out =
      "; want what it was, or checkpoint.load_data=false, which begins at the first row";
  CHECK(says() ==
        cat("/b.jsonl (data file 1) has changed since the checkpoint was written: 10 bytes, sum 2 then "
            "(/a.jsonl), 10 bytes, sum 3 now",
            way_out));
  now.pop_back();
  CHECK(says() == cat("the rows of the checkpoint are made of /a.jsonl (data file 1) as well", way_out));
  now = written;
  now.push_back({"data file 2", "/c.jsonl", {}});
  CHECK(
      says() ==
      cat("the rows of this run are made of /c.jsonl (data file 2) as well, those of the checkpoint were not",
          way_out));
}
