#include "data/hf/families/phi/phi.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/hf_config.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelConfig parse(const Json& changes = Json::object()) {
  Json config = {{"model_type", "phi"},    {"hidden_size", 16},        {"intermediate_size", 24},
                 {"num_hidden_layers", 2}, {"num_attention_heads", 2}, {"vocab_size", 40}};
  config.update(changes);
  return parse_hf_config(JsonView(config, "config.json"));
}
std::string fault(const Json& changes) {
  return message_of([&] { (void)parse(changes); });
}
bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("phi: defaults of the class, and a bias of every layer, the head's too") {
  const ModelConfig c = parse();
  CHECK(c.attention.num_key_value_heads == 2);
  CHECK(c.attention.head_dim == 8);
  CHECK(c.attention.rope == RopeConfig{.type = RopeType::standard, .partial_rotary_factor = 0.5});
  CHECK(c.norm == NormKind::layernorm);
  CHECK_FALSE(c.mlp.gate);
  CHECK(c.mlp.activation == MlpActivation::gelu_tanh);
  CHECK(c.layer_norm_epsilon == 1e-5);
  CHECK(c.block(1).residual == Residual::shared_norm);
  CHECK(c.block(2).residual == Residual::norm_before);
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(c)) names.push_back(spec.name);
  std::vector<std::string> want{"model.embed_tokens.weight"};
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* module : {"input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                               "self_attn.dense", "mlp.fc1", "mlp.fc2"})
      for (const char* member : {".weight", ".bias"}) want.push_back(cat(layer, module, member));
  }
  for (const char* name :
       {"model.final_layernorm.weight", "model.final_layernorm.bias", "lm_head.weight", "lm_head.bias"})
    want.emplace_back(name);
  CHECK(names == want);
}

TEST_CASE("phi: the part of a head that turns, in either spelling, and norms of heads") {
  const auto turns = [](const Json& changes) { return parse(changes).attention.rope.partial_rotary_factor; };
  CHECK(turns({{"partial_rotary_factor", 0.25}}) == 0.25);
  CHECK(turns({{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 1.0}}}}) == 1);
  CHECK(turns({{"rope_parameters", {{"rope_type", "default"}}}, {"partial_rotary_factor", 0.25}}) == 0.25);
  CHECK(turns({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}) == 0.5);
  CHECK(has(fault({{"partial_rotary_factor", 0.1}}),
            "partial_rotary_factor: want an even number of channels that turn, got 0 of head_dim 8"));
  CHECK(has(fault({{"partial_rotary_factor", 1.5}}),
            "partial_rotary_factor: want a number above 0, at most 1"));
  const ModelConfig c = parse({{"qk_layernorm", true}});
  CHECK(c.attention.head_norm == NormKind::layernorm);
  int norms = 0;
  for (const TensorSpec& spec : tensor_specs(c))
    norms += has(spec.name, "self_attn.q_layernorm.") || has(spec.name, "self_attn.k_layernorm.");
  CHECK(norms == 8);
  CHECK(fault({{"hidden_act", "gelu"}}) == "config.json: 'hidden_act': want \"gelu_new\", got \"gelu\"");
  CHECK(has(fault({{"layer_norm_eps", 0}}), "'layer_norm_eps': want a number above 0, got 0"));
}

TEST_CASE("phi: a tied head keeps its bias") {
  std::vector<std::string> tail;
  for (const TensorSpec& spec : tensor_specs(parse({{"tie_word_embeddings", true}})))
    if (spec.name.starts_with("lm_head")) tail.push_back(spec.name);
  CHECK(tail == std::vector<std::string>{"lm_head.bias"});
}

TEST_CASE("phi: what is written is read as the same") {
  for (const Json& changes :
       {Json::object(), Json{{"partial_rotary_factor", 1.0}, {"qk_layernorm", true}},
        Json{{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}, {"tie_word_embeddings", true}}}) {
    const ModelConfig config = parse(changes);
    const Json written = parse_json(make_hf_config(config).text, "config.json");
    CHECK(parse_hf_config(JsonView(written, "config.json")) == config);
  }
}
