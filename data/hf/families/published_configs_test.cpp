#include <doctest/doctest.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "data/hf/families/family.h"
#include "data/hf/hf_config.h"
#include "data/hf/language_part.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("families: published configs have the parameters that their pages show") {
  const std::filesystem::path folder = source_dir().parent_path() / "shared" / "data" / "family_configs";
  if (!std::filesystem::exists(folder)) {
    std::cout << "skipped: published configs: no folder " << folder << '\n';
    return;
  }
  const Json index = read_json_file(folder / "index.json");
  std::map<std::string_view, int> checked;
  for (const auto& [name, model] : index.at("models").items()) {
    const std::filesystem::path file = folder / (name + ".json");
    const Json document = read_json_file(file);
    const JsonView config(document, file.string());
    if (!find_family(config) && !language_part(config)) continue;
    CAPTURE(name);
    const ModelConfig parsed = parse_hf_config(config);
    CHECK(count_tensors(tensor_specs(parsed)).parameters() == model.at("parameters"));
    ++checked[family_of(parsed).model_type];
    // What is written is read as the same.
    const Json written = parse_json(make_hf_config(parsed).text, "config.json");
    CHECK(parse_hf_config(JsonView(written, "config.json")) == parsed);
  }
  const std::map<std::string_view, int> want{
      {"llama", 6},       {"nemotron-nas", 1}, {"mistral", 3},
      {"ministral3", 2},  {"qwen2", 3},        {"qwen3", 2},
      {"qwen3_moe", 1},   {"qwen3_5_text", 4}, {"qwen3_5_moe_text", 1},
      {"gemma3_text", 5}, {"gemma4_text", 2},  {"phi", 2},
      {"baichuan", 3},    {"falcon_h1", 3},    {"nemotron_labs_diffusion", 1}};
  CHECK(checked == want);
}
