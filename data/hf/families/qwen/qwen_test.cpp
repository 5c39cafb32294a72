#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/families/decoder_layers.h"
#include "data/hf/families/qwen/qwen2.h"
#include "data/hf/families/qwen/qwen3.h"
#include "data/hf/families/qwen/qwen3_moe.h"
#include "data/hf/hf_config.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelConfig parse(const char* model_type, const Json& changes = Json::object()) {
  Json config = {{"model_type", model_type}, {"hidden_size", 16},        {"intermediate_size", 24},
                 {"num_hidden_layers", 3},   {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"vocab_size", 40}};
  config.update(changes);
  return parse_hf_config(JsonView(config, "config.json"));
}
std::string fault(const Json& changes) {
  return message_of([&] { (void)parse("qwen2", changes); });
}

/// "-ss": whether each layer slides.
std::string sliding_layers(const ModelConfig& config) {
  std::string text;
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer)
    text += decoder_layers::slides(config, layer) ? 's' : '-';
  return text;
}

std::vector<std::string> names_of_first_layer(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(config))
    if (spec.id.block_of_model() == 0 && spec.id.in_mixer()) names.push_back(cat(spec.name, ' ', spec.shape));
  return names;
}

}  // namespace

TEST_CASE("qwen2: biases of queries, keys and values, and of nothing else; defaults of the class") {
  const ModelConfig c = parse("qwen2");
  CHECK(c.attention.qkv_bias);
  CHECK_FALSE(c.attention.output_bias);
  CHECK_FALSE(c.mlp.bias);
  CHECK(c.attention.head_dim == 4);
  CHECK(c.layer_norm_epsilon == 1e-6);
  CHECK(c.max_position_embeddings == 32768);
  CHECK(c.eos_token_id.empty());
  CHECK_FALSE(c.bos_token_id);
  const std::string attention = "model.layers.0.self_attn.";
  CHECK(names_of_first_layer(c) ==
        std::vector<std::string>{attention + "q_proj.weight [16, 16]", attention + "q_proj.bias [16]",
                                 attention + "k_proj.weight [8, 16]", attention + "k_proj.bias [8]",
                                 attention + "v_proj.weight [8, 16]", attention + "v_proj.bias [8]",
                                 attention + "o_proj.weight [16, 16]"});
  CHECK(parse("qwen2", {{"num_key_value_heads", nullptr}}).attention.num_key_value_heads == 4);
}

TEST_CASE("qwen3: norms of heads, whose width is a key, and biases where the config asks for them") {
  const ModelConfig c = parse("qwen3", {{"head_dim", 6}, {"attention_bias", true}});
  CHECK(c.attention.head_norm == NormKind::rmsnorm);
  const std::string attention = "model.layers.0.self_attn.";
  CHECK(names_of_first_layer(c) ==
        std::vector<std::string>{attention + "q_proj.weight [24, 16]", attention + "q_proj.bias [24]",
                                 attention + "k_proj.weight [12, 16]", attention + "k_proj.bias [12]",
                                 attention + "v_proj.weight [12, 16]", attention + "v_proj.bias [12]",
                                 attention + "o_proj.weight [16, 24]", attention + "o_proj.bias [16]",
                                 attention + "q_norm.weight [6]", attention + "k_norm.weight [6]"});
  const ModelConfig usual = parse("qwen3");
  CHECK(usual.attention.head_dim == 128);
  CHECK_FALSE(usual.attention.qkv_bias);
}

TEST_CASE("qwen3_moe: gated experts behind a softmax router; defaults of the class") {
  const ModelConfig c =
      parse("qwen3_moe", {{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 6}});
  CHECK(to_pattern(c.blocks) == "*E*E*E");
  const std::string attention = "model.layers.0.self_attn.", experts = "model.layers.0.mlp.experts.";
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(c))
    if (spec.id.block_of_model().value_or(2) < 2) names.push_back(cat(spec.name, ' ', spec.shape));
  CHECK(names == std::vector<std::string>{
                     "model.layers.0.input_layernorm.weight [16]", attention + "q_proj.weight [16, 16]",
                     attention + "k_proj.weight [8, 16]", attention + "v_proj.weight [8, 16]",
                     attention + "o_proj.weight [16, 16]", attention + "q_norm.weight [4]",
                     attention + "k_norm.weight [4]", "model.layers.0.post_attention_layernorm.weight [16]",
                     "model.layers.0.mlp.gate.weight [4, 16]", experts + "gate_up_proj [4, 12, 16]",
                     experts + "down_proj [4, 16, 6]"});
  for (const TensorSpec& spec : tensor_specs(c)) CHECK_FALSE(spec.keep_f32);
  const ModelConfig usual = parse("qwen3_moe", {{"num_hidden_layers", 1}});
  CHECK(usual.moe.n_routed_experts == 128);
  CHECK(usual.moe.num_experts_per_tok == 8);
  CHECK(usual.moe.intermediate_size == 768);
  CHECK_FALSE(usual.moe.norm_topk_prob);
  CHECK(parse("qwen3_moe", {{"num_local_experts", 9}}).moe.n_routed_experts == 9);
}

TEST_CASE("qwen3_moe: layers without experts, and windows of all layers") {
  const auto pattern = [](Json changes) {
    changes.update({{"num_hidden_layers", 6}, {"num_experts", 8}});
    return to_pattern(parse("qwen3_moe", changes).blocks);
  };
  CHECK(pattern({{"decoder_sparse_step", 2}}) == "*-*E*-*E*-*E");
  CHECK(pattern({{"decoder_sparse_step", 3}, {"mlp_only_layers", {2}}}) == "*-*-*-*-*-*E");
  CHECK(pattern({{"mlp_only_layers", {0, 5, 9}}}) == "*-*E*E*E*E*-");
  CHECK(pattern({{"mlp_only_layers", nullptr}}) == "*E*E*E*E*E*E");
  CHECK(message_of([&] {
          (void)pattern({{"decoder_sparse_step", 0}});
        }) == "config.json: 'decoder_sparse_step': want at least 1, got 0");
  CHECK(sliding_layers(parse("qwen3_moe", {{"use_sliding_window", true}, {"sliding_window", 5}})) == "sss");
  CHECK(sliding_layers(parse("qwen3_moe", {{"sliding_window", 5}})) == "---");
}

TEST_CASE("qwen: layers slide from max_window_layers on, or where layer_types says so") {
  for (const char* type : {"qwen2", "qwen3"}) {
    CAPTURE(type);
    const Json window = {{"use_sliding_window", true}, {"sliding_window", 5}};
    const auto with = [&](Json changes) {
      changes.update(window);
      return parse(type, changes);
    };
    CHECK(sliding_layers(parse(type, {{"sliding_window", 5}})) == "---");
    CHECK(sliding_layers(with({})) == "---");  // from layer 28 on
    const ModelConfig later = with({{"max_window_layers", 1}});
    CHECK(sliding_layers(later) == "-ss");
    CHECK(decoder_layers::window_of(later) == 5);
    CHECK(later.own_configs.size() == 2);
    const ModelConfig all = with({{"max_window_layers", 0}});
    CHECK(sliding_layers(all) == "sss");
    CHECK(all.own_configs.empty());
    const Json types = {"sliding_attention", "full_attention", "sliding_attention"};
    CHECK(sliding_layers(with({{"layer_types", types}, {"max_window_layers", 0}})) == "s-s");
    CHECK(sliding_layers(parse(
              type, {{"use_sliding_window", true}, {"sliding_window", nullptr}, {"max_window_layers", 0}})) ==
          "---");
  }
  CHECK(fault({{"layer_types", {"full_attention"}}}).find("want one type for each of 3 layers") !=
        std::string::npos);
  CHECK(
      fault({{"layer_types", {"full_attention", "linear_attention", "full_attention"}}})
          .find(
              R"('layer_types[1]': want "full_attention" or "sliding_attention", got "linear_attention")") !=
      std::string::npos);
  CHECK(fault({{"layer_types", {"full_attention", "full_attention", "sliding_attention"}}})
            .find("because no sliding_window is in use") != std::string::npos);
  CHECK(fault({{"use_sliding_window", true}, {"sliding_window", 0}})
            .find("'sliding_window': want at least 1, got 0") != std::string::npos);
  CHECK(fault({{"hidden_act", "gelu"}}) == "config.json: 'hidden_act': want \"silu\", got \"gelu\"");
}

TEST_CASE("qwen: what is written is read as the same") {
  for (const char* type : {"qwen2", "qwen3", "qwen3_moe"})
    for (const Json& changes :
         {Json::object(), Json{{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 2}},
          Json{{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 0}},
          Json{{"mlp_only_layers", {1}}, {"num_experts", 12}, {"norm_topk_prob", true}},
          Json{{"rope_theta", 1e6},
               {"tie_word_embeddings", true},
               {"rope_scaling",
                {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 32768}}}}}) {
      const ModelConfig config = parse(type, changes);
      const Json written = parse_json(make_hf_config(config).text, "config.json");
      CHECK(written.at("model_type") == type);
      CHECK(parse_hf_config(JsonView(written, "config.json")) == config);
    }
}
