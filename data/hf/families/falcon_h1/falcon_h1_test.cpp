#include "data/hf/families/falcon_h1/falcon_h1.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hf/hf_config.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/mamba/mamba_block.h"
#include "model/blocks/mlp/mlp_block.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelConfig parse(const Json& changes = Json::object()) {
  Json config = {{"model_type", "falcon_h1"}, {"hidden_size", 16},        {"intermediate_size", 24},
                 {"num_hidden_layers", 2},    {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"vocab_size", 40},          {"mamba_d_ssm", 24},        {"mamba_n_heads", 6}};
  config.update(changes);
  return parse_hf_config(JsonView(config, "config.json"));
}
std::string fault(const Json& changes) {
  return message_of([&] { (void)parse(changes); });
}
bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

const Json multipliers = {{"embedding_multiplier", 2.5},
                          {"lm_head_multiplier", 0.3},
                          {"key_multiplier", 0.39},
                          {"attention_in_multiplier", 0.5},
                          {"attention_out_multiplier", 0.9},
                          {"ssm_in_multiplier", 1.25},
                          {"ssm_out_multiplier", 0.24},
                          {"mlp_multipliers", {0.88, 0.58}},
                          {"ssm_multipliers", {0.35, 0.25, 0.36, 0.5, 0.37}}};

}  // namespace

TEST_CASE("falcon_h1: defaults of the class") {
  const Json empty = {{"model_type", "falcon_h1"}};
  const ModelConfig c = parse_hf_config(JsonView(empty, "config.json"));
  CHECK(c.vocab_size == 128000);
  CHECK(c.hidden_size == 4096);
  CHECK(c.mlp.intermediate_size == 14336);
  CHECK(c.blocks.size() == 96);
  CHECK(c.attention.num_attention_heads == 32);
  CHECK(c.attention.num_key_value_heads == 8);
  CHECK(c.attention.head_dim == 128);
  CHECK(c.attention.rope == RopeConfig{.type = RopeType::standard, .rope_theta = 10000});
  CHECK(c.layer_norm_epsilon == 1e-5);
  CHECK(c.max_position_embeddings == 8192);
  CHECK_FALSE(c.tie_word_embeddings);
  CHECK(c.pad_token_id == 0);
  CHECK(c.bos_token_id == 1);
  CHECK(c.eos_token_id == std::vector<std::int64_t>{2});
  MambaConfig mamba;
  mamba.num_heads = 128, mamba.head_dim = 8, mamba.n_groups = 1, mamba.ssm_state_size = 256;
  mamba.conv_kernel = 4, mamba.chunk_size = 256;
  mamba.norm = MambaNorm::none, mamba.start = MambaStart::plain;
  CHECK(c.mamba == mamba);
  CHECK(c.embedding_scale == 1);
  CHECK(c.logit_scale == 1);
  CHECK_FALSE(c.round_embedding_scale);
  CHECK_FALSE(c.rescale_prenorm_residual);
}

TEST_CASE("falcon_h1: a layer is three blocks, of which two have one norm") {
  const ModelConfig c = parse({{"mamba_rms_norm", true}, {"mamba_proj_bias", true}, {"mlp_bias", true}});
  CHECK(c.blocks == std::vector<BlockKind>{mamba_block, attention_block, mlp_block, mamba_block,
                                           attention_block, mlp_block});
  for (const std::int64_t i : {0, 2, 3, 5}) CHECK(c.block(i).residual == Residual::norm_before);
  for (const std::int64_t i : {1, 4}) CHECK(c.block(i).residual == Residual::shared_norm);
  std::vector<std::string> names, want{"model.embed_tokens.weight"};
  for (const TensorSpec& spec : tensor_specs(c)) names.push_back(spec.name);
  for (const char* layer : {"model.layers.0.", "model.layers.1."})
    for (const char* member : {"input_layernorm.weight",
                               "mamba.in_proj.weight",
                               "mamba.in_proj.bias",
                               "mamba.conv1d.weight",
                               "mamba.conv1d.bias",
                               "mamba.dt_bias",
                               "mamba.A_log",
                               "mamba.D",
                               "mamba.norm.weight",
                               "mamba.out_proj.weight",
                               "self_attn.q_proj.weight",
                               "self_attn.k_proj.weight",
                               "self_attn.v_proj.weight",
                               "self_attn.o_proj.weight",
                               "pre_ff_layernorm.weight",
                               "feed_forward.gate_proj.weight",
                               "feed_forward.gate_proj.bias",
                               "feed_forward.up_proj.weight",
                               "feed_forward.up_proj.bias",
                               "feed_forward.down_proj.weight",
                               "feed_forward.down_proj.bias"})
      want.push_back(cat(layer, member));
  for (const char* name : {"model.final_layernorm.weight", "lm_head.weight"}) want.emplace_back(name);
  CHECK(names == want);
  for (const TensorSpec& spec : tensor_specs(c)) CHECK(c.names.find(spec.name) == spec.id);
}

TEST_CASE("falcon_h1: the three places of Mamba's norm, and each bias by its own key") {
  const auto norm = [](bool normed, const Json& before) {
    return parse({{"mamba_rms_norm", normed}, {"mamba_norm_before_gate", before}}).mamba.norm;
  };
  CHECK(norm(true, true) == MambaNorm::before_gate);
  CHECK(norm(true, nullptr) == MambaNorm::before_gate);
  CHECK(norm(true, false) == MambaNorm::after_gate);
  for (const Json& before : {Json(true), Json(false)}) CHECK(norm(false, before) == MambaNorm::none);
  const ModelConfig in = parse({{"mamba_proj_bias", true}}), out = parse({{"projectors_bias", true}});
  CHECK((in.mamba.in_proj_bias && !in.mamba.out_proj_bias));
  CHECK((!out.mamba.in_proj_bias && out.mamba.out_proj_bias));
  const ModelConfig attention = parse({{"attention_bias", true}});
  CHECK((attention.attention.qkv_bias && attention.attention.output_bias && !attention.mlp.bias));
}

TEST_CASE("falcon_h1: the width of the mixer") {
  CHECK(parse().mamba.head_dim == 4);
  CHECK(parse({{"mamba_d_head", "auto"}}).mamba.head_dim == 4);
  CHECK(parse({{"mamba_d_head", 4}}).mamba.head_dim == 4);
  CHECK(parse({{"mamba_d_ssm", nullptr}, {"mamba_n_heads", 4}}).mamba.head_dim == 8);
  CHECK(parse({{"mamba_d_ssm", nullptr}, {"mamba_n_heads", 4}, {"mamba_expand", 3}}).mamba.head_dim == 12);
  CHECK(fault({{"mamba_d_head", 5}}) ==
        "config.json: 'mamba_d_head': want \"auto\" or 4, which is mamba_d_ssm 24 by mamba_n_heads 6, got 5");
  CHECK(has(fault({{"mamba_d_head", "wide"}}), "'mamba_d_head': want \"auto\" or 4"));
  CHECK(fault({{"mamba_n_heads", 7}}) ==
        "config.json: mamba_d_ssm: want a multiple of mamba_n_heads 7, got 24");
  CHECK(has(fault({{"mamba_n_groups", 4}}), "want a multiple of n_groups (4), got 6"));
  CHECK(parse({{"head_dim", 6}}).attention.head_dim == 6);
}

TEST_CASE("falcon_h1: multipliers") {
  const ModelConfig c = parse(multipliers);
  CHECK(c.embedding_scale == 2.5);
  CHECK(c.logit_scale == 0.3);
  CHECK(c.attention.key_multiplier == 0.39);
  CHECK(c.attention.input_multiplier == 0.5);
  CHECK(c.attention.output_multiplier == 0.9);
  CHECK(c.block(1).attention == c.attention);
  CHECK(c.mlp.gate_multiplier == 0.88);
  CHECK(c.mlp.output_multiplier == 0.58);
  CHECK(
      c.mamba.multipliers ==
      MambaMultipliers{.input = 1.25, .z = 0.35, .x = 0.25, .b = 0.36, .c = 0.5, .dt = 0.37, .output = 0.24});
  CHECK(parse({{"ssm_multipliers", nullptr}, {"mlp_multipliers", nullptr}, {"key_multiplier", nullptr}}) ==
        parse());
  CHECK(has(fault({{"ssm_multipliers", {1, 1}}}), "'ssm_multipliers': want a list of 5 numbers"));
  CHECK(has(fault({{"mlp_multipliers", {1}}}), "'mlp_multipliers': want a list of 2 numbers"));
  CHECK(has(fault({{"key_multiplier", 0}}), "key_multiplier: want a number in"));
}

TEST_CASE("falcon_h1: what is refused, and what has no effect") {
  CHECK(fault({{"hidden_act", "gelu"}}) == "config.json: 'hidden_act': want \"silu\", got \"gelu\"");
  CHECK(has(fault({{"rms_norm_eps", 0}}), "'rms_norm_eps': want a number above 0, got 0"));
  CHECK(parse({{"mamba_use_mlp", false},
               {"attn_layer_indices", {0}},
               {"attention_dropout", 0.1},
               {"num_logits_to_keep", 1},
               {"rope_scaling", nullptr}}) == parse());
}

TEST_CASE("falcon_h1: what is written is read as the same") {
  for (const Json& changes :
       {Json::object(), multipliers, Json{{"mamba_rms_norm", true}, {"mamba_conv_bias", false}},
        Json{{"mamba_rms_norm", true}, {"mamba_norm_before_gate", false}, {"tie_word_embeddings", true}},
        Json{{"time_step_limit", {0.01, 2.0}}, {"mamba_proj_bias", true}, {"rope_theta", 1e11}},
        Json{{"projectors_bias", true}, {"attention_bias", true}, {"head_dim", 6}, {"mamba_d_state", 3}}}) {
    const ModelConfig config = parse(changes);
    const Json written = parse_json(make_hf_config(config).text, "config.json");
    CHECK(parse_hf_config(JsonView(written, "config.json")) == config);
    for (const auto& [key, value] : multipliers.items())
      if (changes.contains(key)) CHECK(written.at(key) == value);
  }
}
