// Compares with what AutoTokenizer builds (tools/goldens/make_tokenizer_classes.py).
#include "data/tokenizer/tokenizer_class.h"

#include <nlohmann/json.hpp>

#include "data/json/json_ref.h"
#include "data/tokenizer/test_support.h"

using namespace nemocube;

namespace {

using nlohmann::json;

/// The line for a folder of these files; null: no such file.
std::string line_of(const Json& tokenizer, const json& config, const json& tokenizer_config) {
  const tok_test::TempDirectory folder;
  const std::string file = folder.write("tokenizer.json", tokenizer.dump()).string();
  if (!config.is_null()) folder.write("config.json", config.dump());
  if (!tokenizer_config.is_null()) folder.write("tokenizer_config.json", tokenizer_config.dump());
  const JsonRef root(tokenizer, file, "");
  const bool byte_level = tokenizer["pre_tokenizer"].dump().find("ByteLevel") != std::string::npos;
  const std::string line =
      tok::difference_of_class(folder.path(), root, tok::Bpe::load(root.at("model"), byte_level));
  if (!line.empty()) CHECK(line.starts_with(file + ": AutoTokenizer of transformers 5.24 loads "));
  Tokenizer::load(folder.path());
  return line;
}

Json with_model(const json& golden, const std::string& name) {
  static const json models = tok_test::read_golden("pipelines/models.json");
  json document = golden["files"][name];
  for (const char* key : {"vocab", "merges"})
    document["model"][key] = models[document["model"][key].get<std::string>()][key];
  return document;
}

TEST_CASE("tokenizer classes: where AutoTokenizer makes another pipeline, one line says what differs") {
  const json golden = tok_test::read_golden("classes.json");
  int silent = 0, lines = 0;
  for (const json& one : golden["cases"]) {
    CAPTURE(one.dump());
    std::string parts;
    for (const json& part : one[4]) parts += (parts.empty() ? "" : ", ") + part.get<std::string>();
    const std::string line = line_of(with_model(golden, one[0]), one[1], one[2]);
    if (parts.empty()) {
      CHECK(line.empty());
      ++silent;
    } else {
      CHECK(line.find("loads " + one[3].get<std::string>() + " here, ") != std::string::npos);
      CHECK(line.find("of its own: " + parts + ". ") != std::string::npos);
      ++lines;
    }
  }
  CHECK(silent > 20);
  CHECK(lines > 20);
}

TEST_CASE("tokenizer classes: nothing is said where the class is not known") {
  const json golden = tok_test::read_golden("classes.json");
  const Json file = with_model(golden, "prepended");
  const json named = {{"tokenizer_class", "LlamaTokenizer"}};
  CHECK_FALSE(line_of(file, {{"model_type", "llama"}}, named).empty());
  CHECK(line_of(file, {{"model_type", "some_new_type"}}, named).empty());
  json own_code = named;
  own_code["auto_map"] = {{"AutoTokenizer", json::array({"own.Tokenizer", nullptr})}};
  CHECK(line_of(file, {{"model_type", "llama"}}, own_code).empty());
  CHECK(line_of(file, json::array(), json(nullptr)).empty());
  CHECK(line_of(file, {{"model_type", 5}, {"tokenizer_class", 5}}, json(nullptr)).empty());
}

TEST_CASE("tokenizer classes: null is the default, and a Sequence has one list of steps") {
  const json golden = tok_test::read_golden("classes.json");
  const json bytes = {{"tokenizer_class", "GPT2Tokenizer"}},
             characters = {{"tokenizer_class", "LlamaTokenizer"}};
  Json file = with_model(golden, "bytes");
  file["pre_tokenizer"]["use_regex"] = nullptr;
  CHECK(line_of(file, {{"model_type", "llama"}}, bytes).empty());
  file = with_model(golden, "always");
  file["decoder"]["normalizers"] = 5;
  file["pre_tokenizer"]["prepend_scheme"] = nullptr;
  json legacy = characters;
  legacy["legacy"] = true;
  CHECK(line_of(file, {{"model_type", "llama"}}, legacy).empty());
  CHECK_FALSE(line_of(file, {{"model_type", "llama"}}, characters).empty());
}

}  // namespace
