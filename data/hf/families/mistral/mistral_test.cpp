#include "data/hf/families/mistral/mistral.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/families/decoder_layers.h"
#include "data/hf/families/mistral/ministral3.h"
#include "data/hf/hf_config.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Json small(const char* model_type, const Json& changes = Json::object()) {
  Json config = {{"model_type", model_type}, {"hidden_size", 16},        {"intermediate_size", 24},
                 {"num_hidden_layers", 2},   {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"vocab_size", 40}};
  config.update(changes);
  return config;
}
ModelConfig parse(const Json& config) { return parse_hf_config(JsonView(config, "config.json")); }
ModelConfig parse(const char* model_type, const Json& changes = Json::object()) {
  return parse(small(model_type, changes));
}
std::string fault(const char* model_type, const Json& changes) {
  return message_of([&] { (void)parse(model_type, changes); });
}

}  // namespace

TEST_CASE("mistral: every layer slides, by 4096 where the key is absent, and not at all where it is null") {
  CHECK(parse("mistral").attention.window == 4096);
  CHECK(parse("mistral", {{"sliding_window", nullptr}}).attention.window == 0);
  CHECK(parse("mistral", {{"sliding_window", 7}}).attention.window == 7);
  CHECK(parse("ministral3").attention.window == 0);
  CHECK(parse("ministral3", {{"sliding_window", 7}}).attention.window == 7);
  CHECK(fault("mistral", {{"sliding_window", 0}}) ==
        "config.json: 'sliding_window': want at least 1, or null for no window, got 0");
  const ModelConfig c = parse("mistral");
  CHECK(c.attention.head_dim == 4);
  CHECK_FALSE(c.attention.qkv_bias);
  CHECK(c.layer_norm_epsilon == 1e-6);
  CHECK_FALSE(c.pad_token_id);
}

TEST_CASE("ministral3: queries grow with their position as the rotary embedding's keys say") {
  const ModelConfig usual = parse("ministral3");
  CHECK(usual.attention.position_scale == PositionScale{0.1, 16384});
  CHECK(usual.attention.rope.type == RopeType::yarn);
  CHECK(usual.attention.rope.rope_theta == 1e6);
  CHECK(usual.attention.head_dim == 128);
  CHECK(usual.layer_norm_epsilon == 1e-5);
  CHECK(usual.pad_token_id == 11);
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 8}};
  Json scaled = yarn;
  scaled["llama_4_scaling_beta"] = 0.3;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    CAPTURE(key);
    CHECK(parse("ministral3", {{key, scaled}}).attention.position_scale == PositionScale{0.3, 8});
    CHECK(parse("ministral3", {{key, yarn}}).attention.position_scale == PositionScale{});
  }
  const Json no_length = {{"rope_type", "default"}, {"llama_4_scaling_beta", 0.3}};
  CHECK(
      fault("ministral3", {{"rope_parameters", no_length}})
          .find("'rope_parameters.llama_4_scaling_beta': want it beside original_max_position_embeddings") !=
      std::string::npos);
  CHECK(fault("mistral", {{"rope_scaling", scaled}})
            .find("'rope_scaling.llama_4_scaling_beta': this key of a rotary embedding is not known here") !=
        std::string::npos);
}

TEST_CASE("mistral3: the language model inside; the whole's flag ties the head") {
  for (const char* type : {"mistral", "ministral3"}) {
    CAPTURE(type);
    Json whole = {{"model_type", "mistral3"},
                  {"vision_config", {{"model_type", "pixtral"}}},
                  {"text_config", small(type, {{"tie_word_embeddings", false}})}};
    CHECK(parse(whole).tie_word_embeddings);
    whole["tie_word_embeddings"] = false;
    CHECK_FALSE(parse(whole).tie_word_embeddings);
    whole["text_config"]["tie_word_embeddings"] = true;
    CHECK_FALSE(parse(whole).tie_word_embeddings);
    whole["model_type"] = "another_whole";
    CHECK(parse(whole).tie_word_embeddings);
  }
}

TEST_CASE("mistral: what is written is read as the same") {
  const Json scaled = {{"rope_type", "yarn"},
                       {"factor", 4},
                       {"original_max_position_embeddings", 8},
                       {"llama_4_scaling_beta", 0.3}};
  for (const Json& config :
       {small("mistral"), small("mistral", {{"sliding_window", nullptr}, {"rope_theta", 1e9}}),
        small("mistral", {{"sliding_window", 7}, {"tie_word_embeddings", true}}), small("ministral3"),
        small("ministral3", {{"rope_parameters", scaled}, {"sliding_window", 7}}),
        small("ministral3", {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 100}}}})}) {
    const ModelConfig parsed = parse(config);
    const Json written = parse_json(make_hf_config(parsed).text, "config.json");
    CHECK(written.at("model_type") == config.at("model_type"));
    CHECK(parse(written) == parsed);
  }
}
