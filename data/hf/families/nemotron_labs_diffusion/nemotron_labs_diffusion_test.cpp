#include "data/hf/families/nemotron_labs_diffusion/nemotron_labs_diffusion.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/hf_config.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Json small(const Json& changes = Json::object()) {
  Json config = {{"model_type", "nemotron_labs_diffusion"},
                 {"hidden_size", 16},
                 {"intermediate_size", 24},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"vocab_size", 140},
                 {"tie_word_embeddings", false}};
  config.update(changes);
  return config;
}
ModelConfig parse(const Json& config) { return parse_hf_config(JsonView(config, "config.json")); }

}  // namespace

TEST_CASE("nemotron_labs_diffusion: the layers of Ministral 3, with a mask token and a size of blocks") {
  const ModelConfig usual = parse(small());
  Json of_ministral = small();
  of_ministral["model_type"] = "ministral3";
  ModelConfig ministral = parse(of_ministral);
  CHECK_FALSE(ministral.diffusion);
  CHECK(usual.diffusion == DiffusionConfig{.mask_token_id = 100, .block_size = 32});
  CHECK(usual.common() == ministral.common());
  const ModelConfig other = parse(small({{"mask_token_id", 7}, {"block_size", 4}, {"dlm_paradigm", "x"}}));
  CHECK(other.diffusion == DiffusionConfig{.mask_token_id = 7, .block_size = 4});
  CHECK(message_of([] {
          parse(small({{"mask_token_id", 140}}));
        }).find("mask_token_id") != std::string::npos);
  CHECK(message_of([] {
          parse(small({{"block_size", 0}}));
        }) == "config.json: block_size: want at least 1, got 0");
}

TEST_CASE("nemotron_labs_diffusion: names of tensors, and what is written is read as the same") {
  const ModelConfig config = parse(small({{"block_size", 4}}));
  CHECK(config.text(head_name() / "weight") == "diffusion_head.weight");
  CHECK(config.text(embeddings_name() / "weight") == "encoder.embed_tokens.weight");
  CHECK(config.text(mixer_name(2, "q_proj.weight")) == "encoder.layers.1.self_attn.q_proj.weight");
  CHECK(config.names.table().canonical("language_model.model.norm.weight") == "encoder.norm.weight");
  const Json written = parse_json(make_hf_config(config).text, "config.json");
  CHECK(written.at("architectures") == Json{"NemotronLabsDiffusionModel"});
  CHECK(parse(written) == config);
  Json by_class = small();
  by_class.erase("model_type");
  by_class["architectures"] = {"NemotronLabsDiffusionModel"};
  CHECK(parse(by_class).diffusion);
}
