#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/families/decoder_layers.h"
#include "data/hf/families/gemma/gemma3.h"
#include "data/hf/hf_config.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Json small(const Json& changes = Json::object()) {
  Json config = {{"model_type", "gemma3_text"},
                 {"hidden_size", 16},
                 {"intermediate_size", 24},
                 {"num_hidden_layers", 7},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 8},
                 {"vocab_size", 40}};
  config.update(changes);
  return config;
}
ModelConfig parse_whole(const Json& config) { return parse_hf_config(JsonView(config, "config.json")); }
ModelConfig parse(const Json& changes = Json::object()) { return parse_whole(small(changes)); }
std::string fault(const Json& changes) {
  return message_of([&] { (void)parse(changes); });
}
bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

std::string sliding_layers(const ModelConfig& config) {
  std::string text;
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer)
    text += decoder_layers::slides(config, layer) ? 's' : '-';
  return text;
}

}  // namespace

TEST_CASE("gemma3: defaults of the class, and tensors with a norm before and behind each mixer") {
  const ModelConfig c = parse();
  CHECK(c.tie_word_embeddings);
  CHECK(c.embedding_scale == 4);
  CHECK(c.attention.score_scale == 1.0 / 16);
  CHECK(c.logit_softcap == 0);
  CHECK(c.norm == NormKind::rmsnorm_one_plus_w);
  CHECK(c.attention.head_norm == NormKind::rmsnorm_one_plus_w);
  CHECK(c.mlp.gate == GateActivation::gelu_tanh);
  CHECK(c.pad_token_id == 0);
  CHECK(c.bos_token_id == 2);
  CHECK(c.eos_token_id == std::vector<std::int64_t>{1});
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(c))
    if (spec.id.block_of_model().value_or(9) < 2) names.push_back(spec.name);
  std::vector<std::string> want;
  for (const char* member :
       {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm", "pre_feedforward_layernorm",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_feedforward_layernorm"})
    want.push_back(cat("model.layers.0.", member, ".weight"));
  CHECK(names == want);
}

TEST_CASE("gemma3: layers slide by a pattern or by their types, with a rotary embedding of their own") {
  CHECK(sliding_layers(parse()) == "sssss-s");
  CHECK(sliding_layers(parse({{"sliding_window_pattern", 2}})) == "s-s-s-s");
  CHECK(sliding_layers(parse({{"sliding_window_pattern", 8}})) == "sssssss");
  const Json types = {"full_attention",    "full_attention",    "sliding_attention", "full_attention",
                      "sliding_attention", "sliding_attention", "full_attention"};
  CHECK(sliding_layers(parse({{"layer_types", types}, {"sliding_window_pattern", 2}})) == "--s-ss-");
  CHECK(
      has(fault({{"sliding_window", nullptr}}), "'sliding_window': want at least 1, because layer 0 slides"));
  CHECK(sliding_layers(parse({{"sliding_window", nullptr}, {"sliding_window_pattern", 1}})) == "-------");

  const auto ropes = [](const Json& changes) {
    const ModelConfig c = parse(changes);
    return std::pair(decoder_layers::attention_of(c, 5).rope, decoder_layers::attention_of(c, 0).rope);
  };
  const RopeConfig local{.type = RopeType::standard, .rope_theta = 1e4},
      global{.type = RopeType::standard, .rope_theta = 1e6};
  CHECK(ropes(Json::object()) == std::pair(global, local));
  RopeConfig stretched{.type = RopeType::linear, .rope_theta = 5e5, .factor = 8}, near = local;
  near.rope_theta = 20;
  CHECK(ropes({{"rope_theta", 5e5},
               {"rope_local_base_freq", 20},
               {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}}) == std::pair(stretched, near));
  CHECK(ropes({{"rope_parameters",
                {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 5e5}}},
                 {"sliding_attention", {{"rope_theta", 20}}}}}}) == std::pair(stretched, near));
  stretched.rope_theta = 1e6;
  CHECK(ropes({{"rope_parameters", {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}}}}}}) ==
        std::pair(stretched, local));
  CHECK(has(fault({{"rope_parameters", {{"rope_type", "linear"}, {"factor", 8}}}}),
            "want only the keys full_attention and sliding_attention"));
  CHECK(has(fault({{"rope_parameters", {{"full_attention", {{"rope_theta", 5e5}}}}},
                   {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}}),
            "'rope_scaling': want it absent, because rope_parameters says the same"));
}

TEST_CASE("gemma3: what is refused, and what has no effect") {
  CHECK(fault({{"hidden_activation", "gelu"}}) ==
        "config.json: 'hidden_activation': want \"gelu_pytorch_tanh\", got \"gelu\"");
  CHECK(has(fault({{"use_bidirectional_attention", true}}), "'use_bidirectional_attention': want false"));
  CHECK(has(fault({{"query_pre_attn_scalar", 0}}), "'query_pre_attn_scalar': want at least 1, got 0"));
  CHECK(has(fault({{"sliding_window_pattern", 0}}), "'sliding_window_pattern': want at least 1, got 0"));
  CHECK(parse({{"attn_logit_softcapping", 50}}) == parse());
  CHECK(parse({{"final_logit_softcapping", 30}}).logit_softcap == 30);
}

TEST_CASE("gemma3: the language model of a wrapper, whose head is tied by default and has no soft cap") {
  const Json part = small({{"tie_word_embeddings", false}, {"final_logit_softcapping", 30}});
  const Json whole = {{"model_type", "gemma3"}, {"text_config", part}, {"vision_config", {{"a", 1}}}};
  const ModelConfig c = parse_whole(whole);
  CHECK(c.tie_word_embeddings);
  CHECK(c.logit_softcap == 0);
  Json untied = whole;
  untied["tie_word_embeddings"] = false;
  CHECK_FALSE(parse_whole(untied).tie_word_embeddings);
}

TEST_CASE("gemma3: what is written is read as the same") {
  const Json linear = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 20}};
  for (const Json& changes :
       {Json::object(), Json{{"sliding_window_pattern", 1}}, Json{{"sliding_window_pattern", 9}},
        Json{{"query_pre_attn_scalar", 168}, {"final_logit_softcapping", 30}, {"attention_bias", true}},
        Json{{"rope_theta", 5e5}, {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}},
        Json{{"rope_parameters",
              {{"full_attention", {{"rope_theta", 5e5}}}, {"sliding_attention", linear}}}}}) {
    CAPTURE(changes.dump());
    const ModelConfig config = parse(changes);
    const Json written = parse_json(make_hf_config(config).text, "config.json");
    CHECK(parse_whole(written) == config);
  }
  CHECK(parse_json(make_hf_config(parse()).text, "config.json").at("sliding_window_pattern") == 6);
}
