#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "data/hf/families/decoder_layers.h"
#include "data/hf/families/gemma/gemma4.h"
#include "data/hf/hf_config.h"
#include "data/hf/hf_weights.h"
#include "data/json/test_dir.h"
#include "data/safetensors/writer.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

const char *const s = "sliding_attention", *const f = "full_attention";

Json small(const Json& changes = Json::object(), const char* model_type = "gemma4_text") {
  Json config = {{"model_type", model_type},
                 {"hidden_size", 16},
                 {"intermediate_size", 24},
                 {"num_hidden_layers", 7},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 8},
                 {"global_head_dim", 12},
                 {"hidden_size_per_layer_input", 0},
                 {"vocab_size", 40}};
  config.update(changes);
  return config;
}
const Json inputs = {{"hidden_size_per_layer_input", 6}, {"vocab_size_per_layer_input", 40}};
const Json experts = {
    {"enable_moe_block", true}, {"num_experts", 4}, {"top_k_experts", 2}, {"moe_intermediate_size", 10}};
/// The last two of six layers read keys and values of layers 2 and 3.
const Json sharing = {{"num_hidden_layers", 6},
                      {"layer_types", {s, f, s, f, s, f}},
                      {"num_kv_shared_layers", 2},
                      {"use_double_wide_mlp", true}};
Json all(std::initializer_list<Json> changes) {
  Json merged = Json::object();
  for (const Json& one : changes) merged.update(one);
  return merged;
}

ModelConfig parse_whole(const Json& config) { return parse_hf_config(JsonView(config, "config.json")); }
ModelConfig parse(const Json& changes = Json::object(), const char* model_type = "gemma4_text") {
  return parse_whole(small(changes, model_type));
}
std::string fault(const Json& changes, const char* model_type = "gemma4_text") {
  return message_of([&] { (void)parse(changes, model_type); });
}
bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

std::string sliding_layers(const ModelConfig& config) {
  std::string text;
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer)
    text += decoder_layers::slides(config, layer) ? 's' : '-';
  return text;
}

/// The names of a layer's tensors without "model.layers.N." and ".weight", and the names outside of layers.
std::vector<std::string> members(const ModelConfig& config, std::optional<std::int64_t> layer) {
  const std::string prefix = layer ? cat("model.layers.", *layer, ".") : "";
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(config)) {
    if (!spec.name.starts_with(prefix) || (!layer && spec.name.starts_with("model.layers."))) continue;
    std::string name = spec.name.substr(prefix.size());
    if (name.ends_with(".weight")) name.resize(name.size() - 7);
    names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}
using Names = std::vector<std::string>;

Json written(const ModelConfig& config) { return parse_json(make_hf_config(config).text, "config.json"); }

}  // namespace

TEST_CASE("gemma4: defaults of the class, and tensors of a layer") {
  const ModelConfig c = parse();
  CHECK(c.tie_word_embeddings);
  CHECK(c.layer_scalars);
  CHECK(c.embedding_scale == 4);
  CHECK(c.logit_softcap == 0);
  CHECK(c.norm == NormKind::rmsnorm);
  CHECK(c.attention.head_norm == NormKind::rmsnorm);
  CHECK(c.attention.value_norm);
  CHECK(c.attention.score_scale == 1);
  CHECK(c.attention.window == 512);
  CHECK(c.mlp.gate == GateActivation::gelu_tanh);
  CHECK(c.max_position_embeddings == 131072);
  CHECK(c.pad_token_id == 0);
  CHECK(c.bos_token_id == 2);
  CHECK(c.eos_token_id == std::vector<std::int64_t>{1});
  CHECK(members(c, {}) == Names{"model.embed_tokens", "model.norm"});
  CHECK(members(c, 3) == Names{"input_layernorm", "layer_scalar", "mlp.down_proj", "mlp.gate_proj",
                               "mlp.up_proj", "post_attention_layernorm", "post_feedforward_layernorm",
                               "pre_feedforward_layernorm", "self_attn.k_norm", "self_attn.k_proj",
                               "self_attn.o_proj", "self_attn.q_norm", "self_attn.q_proj",
                               "self_attn.v_proj"});
  // The class has per-layer inputs unless told otherwise.
  CHECK(fault({{"hidden_size_per_layer_input", 6}}) ==
        "config.json: 'vocab_size_per_layer_input': want 40, the vocab_size, got 262144");
}

TEST_CASE("gemma4: per-layer inputs, and experts beside the MLP, have tensors of their own") {
  const ModelConfig c = parse(all({inputs, experts, {{"attention_k_eq_v", true}}}));
  CHECK(members(c, {}) == Names{"model.embed_tokens", "model.embed_tokens_per_layer", "model.norm",
                                "model.per_layer_model_projection", "model.per_layer_projection_norm"});
  CHECK(members(c, 5) == Names{"experts.down_proj",
                               "experts.gate_up_proj",
                               "input_layernorm",
                               "layer_scalar",
                               "mlp.down_proj",
                               "mlp.gate_proj",
                               "mlp.up_proj",
                               "per_layer_input_gate",
                               "per_layer_projection",
                               "post_attention_layernorm",
                               "post_feedforward_layernorm",
                               "post_feedforward_layernorm_1",
                               "post_feedforward_layernorm_2",
                               "post_per_layer_input_norm",
                               "pre_feedforward_layernorm",
                               "pre_feedforward_layernorm_2",
                               "router.per_expert_scale",
                               "router.proj",
                               "router.scale",
                               "self_attn.k_norm",
                               "self_attn.k_proj",
                               "self_attn.o_proj",
                               "self_attn.q_norm",
                               "self_attn.q_proj"});
  std::map<std::string, Shape> shapes;
  for (const TensorSpec& spec : tensor_specs(c)) shapes.emplace(spec.name, spec.shape);
  CHECK(shapes.at("model.embed_tokens_per_layer.weight") == Shape{40, 42});
  CHECK(shapes.at("model.per_layer_model_projection.weight") == Shape{42, 16});
  CHECK(shapes.at("model.per_layer_projection_norm.weight") == Shape{6});
  CHECK(shapes.at("model.layers.0.per_layer_input_gate.weight") == Shape{6, 16});
  CHECK(shapes.at("model.layers.0.layer_scalar") == Shape{1});
  CHECK(shapes.at("model.layers.0.router.proj.weight") == Shape{4, 16});
  CHECK(shapes.at("model.layers.0.router.scale") == Shape{16});
  CHECK(shapes.at("model.layers.0.router.per_expert_scale") == Shape{4});
  CHECK(shapes.at("model.layers.0.experts.gate_up_proj") == Shape{4, 20, 16});
  CHECK(shapes.at("model.layers.0.experts.down_proj") == Shape{4, 16, 10});
  CHECK(shapes.at("model.layers.0.mlp.gate_proj.weight") == Shape{24, 16});
}

TEST_CASE("gemma4: a name leads back to its tensor, whatever blocks a layer has") {
  for (const Json& changes : {Json::object(), inputs, experts, all({inputs, experts, sharing})}) {
    CAPTURE(changes.dump());
    const ModelConfig c = parse(changes);
    for (const TensorSpec& spec : tensor_specs(c)) {
      CAPTURE(spec.name);
      CHECK(c.names.find(spec.name) == spec.id);
      CHECK(canonical_tensor("model.language_model." + spec.name.substr(6), c.names.table()).name ==
            spec.name);
    }
  }
}

TEST_CASE("gemma4: layers slide by their types, and the last one sees all keys") {
  CHECK(sliding_layers(parse()) == "sssss--");
  CHECK(sliding_layers(parse({{"layer_types", {f, s, s, f, f, s, s}}})) == "-ss--s-");
  CHECK(parse({{"layer_types", {f, s, s, f, f, s, s}}}) == parse({{"layer_types", {f, s, s, f, f, s, f}}}));
  CHECK(sliding_layers(parse({{"num_hidden_layers", 1}})) == "-");
  CHECK(has(fault({{"layer_types", {s, f}}}), "one type for each of 7 layers"));
  CHECK(has(fault({{"sliding_window", nullptr}}), "'sliding_window': want an integer, got null"));
  CHECK(has(fault({{"sliding_window", 0}}), "'sliding_window': want at least 1, got 0"));
}

TEST_CASE("gemma4: heads of layers that see all keys, in both spellings") {
  const auto heads = [](const Json& changes) {
    const ModelConfig c = parse(changes);
    const AttentionConfig &of_full = decoder_layers::attention_of(c, 6),
                          &of_sliding = decoder_layers::attention_of(c, 0);
    CHECK(decoder_layers::attention_of(c, 5) == of_full);
    return std::vector{of_full.head_dim, of_full.num_key_value_heads, of_sliding.head_dim,
                       of_sliding.num_key_value_heads};
  };
  using Sizes = std::vector<std::int64_t>;
  const Json k_eq_v = {{"attention_k_eq_v", true}, {"num_global_key_value_heads", 1}};
  CHECK(heads(Json::object()) == Sizes{12, 2, 8, 2});
  CHECK(heads(k_eq_v) == Sizes{12, 1, 8, 2});
  // Only models whose values are keys have another number of heads.
  CHECK(heads({{"num_global_key_value_heads", 1}}) == Sizes{12, 2, 8, 2});
  Json none = small();
  none.erase("global_head_dim");
  CHECK(decoder_layers::attention_of(parse_whole(none), 6).head_dim == 512);
  const auto by_layer = [&](const Json& layers) {
    Json changes = {{"global_head_dim", nullptr}, {"per_layer_config", layers}};
    return changes;
  };
  const Json wide = {{"head_dim", 20}, {"num_key_value_heads", 1}}, narrow = {{"head_dim", 4}};
  CHECK(heads(by_layer({{"05", wide}, {"06", wide}})) == Sizes{20, 1, 8, 2});
  CHECK(heads(by_layer({{"5", wide}, {"6", wide}, {"0", {{"head_dim", 8}}}})) == Sizes{20, 1, 8, 2});
  CHECK(heads(by_layer({{"0", narrow}, {"1", narrow}, {"2", narrow}, {"3", narrow}, {"4", narrow}})) ==
        Sizes{8, 2, 4, 2});
  CHECK(heads(by_layer(Json::object())) == Sizes{8, 2, 8, 2});
  CHECK(heads(by_layer(nullptr)) == Sizes{8, 2, 8, 2});
  CHECK(fault(by_layer({{"5", wide}})) ==
        "config.json: 'per_layer_config': want head_dim 8 and num_key_value_heads 2 in each layer of "
        "full_attention, got 20 and 1 in layer 5");
  CHECK(has(fault(by_layer({{"7", wide}})), "'per_layer_config.7': want keys of layers 0 to 6 only"));
  CHECK(has(fault(by_layer({{"5", {{"intermediate_size", 7}}}})),
            "'per_layer_config.5.intermediate_size': want it absent"));
  CHECK(heads(by_layer({{"5", {{"intermediate_size", 24}}}})) == Sizes{8, 2, 8, 2});
  CHECK(has(fault({{"per_layer_config", {{"5", wide}, {"6", wide}}}}),
            "'per_layer_config' and 'global_head_dim' differ"));
  CHECK(has(fault(all({k_eq_v, {{"global_head_dim", 8}, {"per_layer_config", Json::object()}}})),
            "'per_layer_config' and 'num_global_key_value_heads' differ"));
  CHECK(has(fault({{"global_head_dim", nullptr}}), "'global_head_dim': want an integer, got null"));
}

TEST_CASE("gemma4: each type of layer has a rotary embedding") {
  const auto ropes = [](const Json& changes) {
    const ModelConfig c = parse(changes);
    return std::pair(decoder_layers::attention_of(c, 6).rope, decoder_layers::attention_of(c, 0).rope);
  };
  RopeConfig wide{.type = RopeType::proportional, .rope_theta = 1e6, .partial_rotary_factor = 0.25},
      narrow{.type = RopeType::standard, .rope_theta = 1e4};
  CHECK(ropes(Json::object()) == std::pair(wide, narrow));
  CHECK(ropes({{"rope_theta", 5}}) == std::pair(wide, narrow));
  wide.partial_rotary_factor = 1;
  wide.rope_theta = 100;
  narrow.rope_theta = 20;
  const Json of_full = {{"rope_type", "proportional"}, {"rope_theta", 100}},
             of_sliding = {{"rope_theta", 20}};
  CHECK(ropes({{"rope_parameters", {{f, of_full}, {s, of_sliding}}}, {"partial_rotary_factor", 0.5}}) ==
        std::pair(wide, narrow));
  CHECK(has(fault({{"rope_parameters", {{f, of_full}}}}), "'rope_parameters.sliding_attention'"));
  CHECK(ropes({{"rope_parameters", {{f, of_full}}}, {"layer_types", {f, f, f, f, f, f, f}}}).first == wide);
  CHECK(has(fault({{"rope_parameters", {{f, {{"rope_type", "proportional"}}}, {s, of_sliding}}}}),
            "'rope_parameters.full_attention.rope_theta'"));
  CHECK(has(fault({{"rope_parameters", {{f, {{"rope_theta", 1}, {"turns", 2}}}, {s, of_sliding}}}}),
            "'rope_parameters.full_attention.turns': this key of a rotary embedding is not known here"));
  CHECK(has(fault({{"rope_parameters", of_sliding}}), "want only the keys full_attention and"));
  CHECK(has(fault({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}}),
            "'rope_scaling': want it absent"));
}

TEST_CASE("gemma4: the last layers read keys and values of the last layer of their type before them") {
  const ModelConfig c = parse(all({sharing, {{"attention_k_eq_v", true}}}));
  const auto attention = [&](std::int64_t layer) { return decoder_layers::attention_of(c, layer); };
  for (const std::int64_t layer : {0, 1, 2, 3}) CHECK_FALSE(attention(layer).kv_block.has_value());
  CHECK(attention(4).kv_block == 4);
  CHECK(attention(5).kv_block == 6);
  CHECK(members(c, 5) == Names{"input_layernorm", "layer_scalar", "mlp.down_proj", "mlp.gate_proj",
                               "mlp.up_proj", "post_attention_layernorm", "post_feedforward_layernorm",
                               "pre_feedforward_layernorm", "self_attn.o_proj", "self_attn.q_norm",
                               "self_attn.q_proj"});
  CHECK(c.block(7).mlp.intermediate_size == 24);
  CHECK(c.block(9).mlp.intermediate_size == 48);
  const ModelConfig mixed = parse(all({sharing, experts}));
  CHECK(mixed.block(7).moe.shared_expert_intermediate_size == 24);
  CHECK(mixed.block(9).moe.shared_expert_intermediate_size == 48);
  CHECK(parse({{"use_double_wide_mlp", true}}) == parse());
  CHECK(fault({{"num_kv_shared_layers", 7}}) ==
        "config.json: 'num_kv_shared_layers': want 0 to 6, so that a layer has keys and values of its own, "
        "got 7");
  CHECK(has(fault({{"num_kv_shared_layers", 2}}),
            "'num_kv_shared_layers' is 2: want keys and values for layer 5, a layer of full_attention, got"));
}

TEST_CASE("gemma4: what is refused, and what has no effect") {
  CHECK(fault({{"hidden_activation", "silu"}}) ==
        "config.json: 'hidden_activation': want \"gelu_pytorch_tanh\", got \"silu\"");
  CHECK(has(fault({{"use_bidirectional_attention", "all"}}),
            "'use_bidirectional_attention': want null or \"vision\""));
  CHECK(parse({{"use_bidirectional_attention", "vision"}}) == parse());
  CHECK(has(fault({{"hidden_size_per_layer_input", nullptr}}), "want an integer, got null"));
  CHECK(has(fault({{"enable_moe_block", true}}), "'num_experts'"));
  CHECK(parse({{"num_experts", 4}, {"top_k_experts", nullptr}}) == parse());
  CHECK(parse({{"attn_logit_softcapping", 50}, {"sliding_window_pattern", 2}}) == parse());
  CHECK(parse({{"final_logit_softcapping", 30}}).logit_softcap == 30);
  CHECK(parse({{"attention_bias", true}}).attention.output_bias);
}

TEST_CASE("gemma4: the language model of a wrapper, whose head is tied by default and has the soft cap") {
  for (const char* type : {"gemma4", "gemma4_unified"}) {
    CAPTURE(type);
    const Json part =
        small({{"tie_word_embeddings", false}, {"final_logit_softcapping", 30}}, cat(type, "_text").c_str());
    Json whole = {{"model_type", type}, {"text_config", part}, {"vision_config", {{"a", 1}}}};
    CHECK(parse_whole(whole).tie_word_embeddings);
    CHECK(parse_whole(whole).logit_softcap == 30);
    whole["tie_word_embeddings"] = false;
    CHECK_FALSE(parse_whole(whole).tie_word_embeddings);
  }
}

TEST_CASE("gemma4: the unified classes have other defaults, and neither per-layer inputs nor experts") {
  Json config = small(Json::object(), "gemma4_unified_text");
  config.erase("hidden_size_per_layer_input");
  const ModelConfig c = parse_whole(config);
  CHECK(c.attention.window == 1024);
  CHECK(c.max_position_embeddings == 262144);
  CHECK(c.num_layers() == 14);
  CHECK(members(c, 6) == members(parse(), 6));
  CHECK(parse(all({inputs, experts}), "gemma4_unified_text") == c);
  CHECK(parse({{"hidden_size_per_layer_input", nullptr}}, "gemma4_unified_text") == c);
  const Json text = written(c);
  CHECK(text.at("model_type") == "gemma4_unified_text");
  CHECK(text.at("architectures") == Json{"Gemma4UnifiedForCausalLM"});
  CHECK_FALSE(text.contains("enable_moe_block"));
}

TEST_CASE("gemma4: what is written is read as the same") {
  const Json linear = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 20}};
  for (const char* type : {"gemma4_text", "gemma4_unified_text"})
    for (const Json& changes :
         {Json::object(), inputs, experts, sharing, all({inputs, experts, sharing}),
          all({experts, sharing, {{"use_double_wide_mlp", false}}}),
          Json{{"attention_k_eq_v", true}, {"num_global_key_value_heads", 1}, {"attention_bias", true}},
          Json{{"final_logit_softcapping", 30}, {"sliding_window", 3}, {"global_head_dim", 8}},
          Json{{"num_hidden_layers", 1}, {"tie_word_embeddings", false}},
          Json{{"rope_parameters", {{f, {{"rope_theta", 5e5}}}, {s, linear}}}}}) {
      CAPTURE(changes.dump());
      const ModelConfig config = parse(changes, type);
      CHECK(parse_whole(written(config)) == config);
    }
  const Json ten = written(parse({{"num_hidden_layers", 12}, {"attention_k_eq_v", true}}));
  CHECK(ten.at("per_layer_config") == Json{{"05", {{"head_dim", 12}}}, {"11", {{"head_dim", 12}}}});
  CHECK(written(parse({{"global_head_dim", 8}})).at("per_layer_config") == Json::object());
  CHECK(written(parse(sharing)).at("num_kv_shared_layers") == 2);
  CHECK(written(parse(sharing)).at("use_double_wide_mlp") == true);
}

TEST_CASE("gemma4: keys and values in files are not read for layers that use those of others") {
  const TestDir dir;
  const ModelConfig config = parse(sharing);
  std::vector<NamedTensor> model;
  for (const TensorSpec& spec : tensor_specs(config))
    model.push_back({.name = spec.name, .value = Tensor::zeros(spec.shape, DType::f32, Device::cpu)});
  const auto check_with = [&](const char* folder, std::initializer_list<const char*> more) {
    std::filesystem::create_directories(dir / folder);
    spit(dir / folder / "config.json", make_hf_config(config).text);
    std::vector<TensorSource> sources;
    for (const NamedTensor& t : model) sources.push_back(source_of(t.name, t.value, DType::f32));
    const Tensor other = Tensor::zeros({3}, DType::f32, Device::cpu);
    for (const char* name : more) sources.push_back(source_of(name, other, DType::f32));
    write_safetensors(dir / folder / single_file_name, std::move(sources));
    return message_of([&] { HfWeights(dir / folder).check(model); });
  };
  CHECK(check_with("unread",
                   {"model.layers.4.self_attn.k_proj.weight", "model.layers.4.self_attn.k_norm.weight",
                    "model.layers.5.self_attn.v_proj.weight"}) == "no error");
  // Of layers with keys of their own, and of other modules, every tensor is to be one of the model's.
  for (const char* name : {"model.layers.3.self_attn.k_proj.bias", "model.layers.5.self_attn.extra.weight",
                           "model.layers.6.self_attn.q_proj.weight"}) {
    CAPTURE(name);
    CHECK(has(check_with(name, {name}), cat("1 unexpected: ", name)));
  }
}
