#include "data/hf/families/qwen/qwen3_5.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/hf_config.h"
#include "data/hf/language_part.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const Json small = {{"hidden_size", 16},
                    {"num_hidden_layers", 4},
                    {"num_attention_heads", 4},
                    {"num_key_value_heads", 2},
                    {"head_dim", 8},
                    {"vocab_size", 40},
                    {"linear_num_key_heads", 2},
                    {"linear_num_value_heads", 6},
                    {"linear_key_head_dim", 3},
                    {"linear_value_head_dim", 5}};

ModelConfig parse(const char* model_type, const Json& changes = Json::object()) {
  Json config = small;
  config["model_type"] = model_type;
  if (model_type == std::string_view("qwen3_5_text"))
    config["intermediate_size"] = 24;
  else
    config.update({{"num_experts", 4},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 6},
                   {"shared_expert_intermediate_size", 10}});
  config.update(changes);
  return parse_hf_config(JsonView(config, "config.json"));
}

std::vector<std::string> names_of_layers(const ModelConfig& config, std::int64_t first, std::int64_t end) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(config))
    if (const auto block = spec.id.block_of_model(); block && *block >= first && *block < end)
      names.push_back(cat(spec.name, ' ', spec.shape));
  return names;
}

}  // namespace

TEST_CASE("qwen3_5: a layer of Gated DeltaNet, and one of attention with a gate") {
  const ModelConfig c = parse("qwen3_5_text", {{"attention_bias", true}});
  CHECK(to_pattern(c.blocks) == "D-D-D-*-");
  const std::string linear = "model.layers.0.linear_attn.", full = "model.layers.3.self_attn.";
  CHECK(names_of_layers(c, 0, 1) ==
        std::vector<std::string>{"model.layers.0.input_layernorm.weight [16]", linear + "dt_bias [6]",
                                 linear + "A_log [6]", linear + "conv1d.weight [42, 1, 4]",
                                 linear + "norm.weight [5]", linear + "out_proj.weight [16, 30]",
                                 linear + "in_proj_qkv.weight [42, 16]", linear + "in_proj_z.weight [30, 16]",
                                 linear + "in_proj_b.weight [6, 16]", linear + "in_proj_a.weight [6, 16]"});
  CHECK(names_of_layers(c, 6, 7) ==
        std::vector<std::string>{
            "model.layers.3.input_layernorm.weight [16]", full + "q_proj.weight [64, 16]",
            full + "q_proj.bias [64]", full + "k_proj.weight [16, 16]", full + "k_proj.bias [16]",
            full + "v_proj.weight [16, 16]", full + "v_proj.bias [16]", full + "o_proj.weight [16, 32]",
            full + "o_proj.bias [16]", full + "q_norm.weight [8]", full + "k_norm.weight [8]"});
  CHECK(c.norm == NormKind::rmsnorm_one_plus_w);
  CHECK(c.attention.rope.partial_rotary_factor == 0.25);
  for (const TensorSpec& spec : tensor_specs(c))
    CHECK(spec.keep_f32 == (spec.name.ends_with("A_log") || spec.name.ends_with("dt_bias")));
  // Every name is found again.
  for (const TensorSpec& spec : tensor_specs(c)) CHECK(c.names.find(spec.name) == spec.id);
}

TEST_CASE("qwen3_5_moe: experts in every layer, and a shared expert with a gate") {
  const ModelConfig c = parse("qwen3_5_moe_text");
  CHECK(to_pattern(c.blocks) == "DEDEDE*E");
  const std::string mlp = "model.layers.0.mlp.";
  CHECK(names_of_layers(c, 1, 2) ==
        std::vector<std::string>{
            "model.layers.0.post_attention_layernorm.weight [16]", mlp + "gate.weight [4, 16]",
            mlp + "experts.gate_up_proj [4, 12, 16]", mlp + "experts.down_proj [4, 16, 6]",
            mlp + "shared_expert.gate_proj.weight [10, 16]", mlp + "shared_expert.up_proj.weight [10, 16]",
            mlp + "shared_expert.down_proj.weight [16, 10]", mlp + "shared_expert_gate.weight [1, 16]"});
  CHECK(c.moe.norm_topk_prob);
  for (const TensorSpec& spec : tensor_specs(c)) CHECK(c.names.find(spec.name) == spec.id);
}

TEST_CASE("qwen3_5: which layers have attention") {
  const auto pattern = [](const Json& changes) { return to_pattern(parse("qwen3_5_text", changes).blocks); };
  CHECK(pattern({{"full_attention_interval", 2}}) == "D-*-D-*-");
  CHECK(pattern({{"full_attention_interval", 9}}) == "D-D-D-D-");
  const Json types = {"full_attention", "linear_attention", "linear_attention", "full_attention"};
  CHECK(pattern({{"layer_types", types}, {"full_attention_interval", 2}}) == "*-D-D-*-");
  const auto fault = [](const Json& changes) {
    return message_of([&] { (void)parse("qwen3_5_text", changes); });
  };
  CHECK(fault({{"layer_types", {"full_attention"}}}).find("want one type for each of 4 layers") !=
        std::string::npos);
  CHECK(
      fault({{"layer_types", {"sliding_attention", "full_attention", "full_attention", "full_attention"}}})
          .find(
              R"('layer_types[0]': want "linear_attention" or "full_attention", got "sliding_attention")") !=
      std::string::npos);
  CHECK(fault({{"full_attention_interval", 0}}) ==
        "config.json: 'full_attention_interval': want at least 1, got 0");
  CHECK(fault({{"attn_output_gate", false}}) == "config.json: 'attn_output_gate': want true, got false");
  CHECK(fault({{"mlp_only_layers", {1}}}).find("'mlp_only_layers': want an empty list") != std::string::npos);
  CHECK(fault({{"linear_num_value_heads", 5}})
            .find("linear_num_value_heads: want a multiple of linear_num_key_heads") != std::string::npos);
  CHECK(pattern({{"attn_output_gate", true},
                 {"mlp_only_layers", Json::array()},
                 {"mamba_ssm_dtype", "float32"}}) == "D-D-D-*-");
}

TEST_CASE("qwen3_5: what is written is read as the same, alone and in a model of several parts") {
  for (const char* type : {"qwen3_5_text", "qwen3_5_moe_text"})
    for (const Json& changes :
         {Json::object(), Json{{"full_attention_interval", 2}, {"tie_word_embeddings", true}},
          Json{{"rope_parameters",
                {{"rope_type", "default"},
                 {"rope_theta", 1e7},
                 {"partial_rotary_factor", 0.5},
                 {"mrope_section", {1, 1, 0}},
                 {"mrope_interleaved", true}}}}}) {
      const ModelConfig config = parse(type, changes);
      const Json written = parse_json(make_hf_config(config).text, "config.json");
      CHECK(written.at("model_type") == type);
      CHECK(parse_hf_config(JsonView(written, "config.json")) == config);
      Json whole = {{"model_type", type == std::string_view("qwen3_5_text") ? "qwen3_5" : "qwen3_5_moe"},
                    {"text_config", written}};
      whole["tie_word_embeddings"] = config.tie_word_embeddings;
      CHECK(language_part(JsonView(whole, "config.json")).has_value());
      CHECK(parse_hf_config(JsonView(whole, "config.json")) == config);
    }
}
