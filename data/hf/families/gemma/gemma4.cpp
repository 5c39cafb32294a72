#include "data/hf/families/gemma/gemma4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/hf/families/decoder_layers.h"
#include "data/hf/families/gemma/gemma4_heads.h"
#include "data/hf/families/gemma/gemma4_names.h"
#include "data/hf/hf_config_refused.h"
#include "data/hf/rope_keys.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_kinds.h"
#include "model/blocks/mlp/mlp_block.h"
#include "model/blocks/moe/moe_block.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"

namespace nemocube {
namespace {

using namespace gemma4;

/// What the two classes of Hugging Face differ in.
struct ConfigClass {
  const Family* family;
  const char* architecture;
  std::int64_t max_position_embeddings, sliding_window;
  bool inputs_and_experts;  ///< whether the class has per-layer inputs and experts
};
constexpr ConfigClass text_class{&gemma4_family, "Gemma4ForCausalLM", 131072, 512, true};
constexpr ConfigClass unified_class{&gemma4_unified_family, "Gemma4UnifiedForCausalLM", 262144, 1024, false};

constexpr decoder_layers::ActivationKey activation{"hidden_activation", "gelu_pytorch_tanh"};

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  decoder_layers::visit_sizes(config, keys);
  keys.key({"attention_bias"}, config.attention.qkv_bias);
  decoder_layers::visit_other_keys(config, keys);
}
void visit_experts(ModelConfig& config, ConfigKeys& keys) {
  keys.key({"num_experts"}, config.moe.n_routed_experts);
  keys.key({"top_k_experts"}, config.moe.num_experts_per_tok);
  keys.key({"moe_intermediate_size"}, config.moe.intermediate_size);
}

/// Where null is not the same as a key that is absent.
void want_integer(const JsonView& object, const char* key) {
  require(!object.has_null(key), object.file(), ": '", key, "': want an integer, got null");
}

void check_keys(const JsonView& object) {
  if (const auto given = object.find(activation.key); given && given->string() != activation.name)
    given->refuse(cat('"', activation.name, '"'));
  if (const auto both = object.find("use_bidirectional_attention"); both && both->string() != "vision")
    both->refuse("null or \"vision\": attention between tokens of text is causal here");
  want_integer(object, "sliding_window");
  if (const auto scaling = find_filled(object, "rope_scaling"))
    scaling->refuse("it absent, because models of this type have rope_parameters");
  for (const char* key : {"rope_theta", "rope_local_base_freq", "partial_rotary_factor",
                          "sliding_window_pattern", "query_pre_attn_scalar", "attn_logit_softcapping"})
    if (const auto given = object.find(key))
      log_warning(object.file(), ": '", key, "' is ", brief(given->value()),
                  " and has no effect in models of this type, in transformers either");
  decoder_layers::warn_of_dropout(object);
}

/// Sets the number of experts, or none. Returns whether layers have experts.
bool read_experts(ModelConfig& config, const JsonView& object) {
  bool experts = false;
  ReadKeys keys(object);
  keys.key({"enable_moe_block"}, experts);
  if (!experts) return false;
  for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) (void)object.at(key);
  visit_experts(config, keys);
  MoeConfig& moe = config.moe;
  moe.shared_expert_intermediate_size = config.mlp.intermediate_size;
  moe.own_norms = moe.norm_topk_prob = true;
  moe.scores = RouterScores::softmax;
  moe.correction_bias = moe.router_in_f32 = false;
  moe.gate = GateActivation::gelu_tanh;
  return true;
}

void read_inputs(ModelConfig& config, const JsonView& object) {
  want_integer(object, "hidden_size_per_layer_input");
  std::int64_t size = 256, vocabulary = 262144;
  ReadKeys keys(object);
  keys.key({"hidden_size_per_layer_input"}, size);
  keys.key({"vocab_size_per_layer_input"}, vocabulary);
  require(size >= 0, object.file(), ": 'hidden_size_per_layer_input': want at least 0, got ", size);
  require(size == 0 || vocabulary == config.vocab_size, object.file(),
          ": 'vocab_size_per_layer_input': want ", config.vocab_size, ", the vocab_size, got ", vocabulary);
  config.per_layer_input.size = size;
}

/// Of a class without them.
void warn_of_inputs_and_experts(const JsonView& object) {
  bool experts = false;
  std::int64_t inputs = 0;
  ReadKeys keys(object);
  keys.key({"enable_moe_block"}, experts);
  keys.key({"hidden_size_per_layer_input"}, inputs);
  if (experts || inputs != 0)
    log_warning(object.file(), ": '", experts ? "enable_moe_block" : "hidden_size_per_layer_input",
                "' has no effect in models of this type, in transformers either");
}

/// Adds the blocks of all layers.
void add_blocks(ModelConfig& config, const JsonView& object, const NameTable& table, bool experts) {
  using decoder_layers::LayerBlock;
  std::vector of_layer{LayerBlock{attention_block, attention_slot},
                       experts ? LayerBlock{moe_block, moe_slot} : LayerBlock{mlp_block, mlp_slot}};
  if (config.per_layer_input.size > 0) of_layer.push_back({per_layer_input_block, inputs_slot});
  decoder_layers::add_layers(config, object, table, 30, of_layer);
}

LayerTypes read_types(const ModelConfig& config, const JsonView& object) {
  const std::int64_t layers = layers_of(config);
  LayerTypes types = decoder_layers::read_layer_types(object, layers, config.attention.window);
  if (types.empty()) {
    constexpr std::int64_t pattern = 6;
    for (std::int64_t layer = 0; layer < layers; ++layer) types.push_back((layer + 1) % pattern != 0);
  } else if (types.back()) {
    log_warning(object.file(), ": 'layer_types' says ", sliding, " of layer ", layers - 1,
                ", which is the last one and sees all keys, in transformers as well");
  }
  types.back() = false;
  return types;
}

/// pre: a layer of the type
RopeConfig read_rope_of(const char* type, const JsonView& parameters, const JsonView& object,
                        const ModelConfig& config) {
  const JsonView own = parameters.at(type);
  if (!own.value().is_object()) own.refuse("an object");
  (void)own.at("rope_theta");
  RopeConfig rope = read_rope_object(own, object, 0, config.max_position_embeddings);
  if (!own.has("partial_rotary_factor")) rope.partial_rotary_factor = 1;  // whatever the whole says
  return rope;
}

struct RopesOfTypes {
  RopeConfig full, sliding;
};
RopesOfTypes default_ropes() {
  return {
      {.type = RopeType::proportional, .rope_theta = 1e6, .partial_rotary_factor = 0.25},
      {.type = RopeType::standard, .rope_theta = 1e4},
  };
}

RopesOfTypes read_ropes(const ModelConfig& config, const JsonView& object, const LayerTypes& types) {
  RopesOfTypes ropes = default_ropes();
  const auto parameters = object.find("rope_parameters");
  if (!parameters) return ropes;
  if (!parameters->value().is_object()) parameters->refuse("an object");
  for (const auto& [key, value] : parameters->value().items())
    if (key != full && key != sliding)
      parameters->member(key).refuse(cat("only the keys ", full, " and ", sliding));
  ropes.full = read_rope_of(full, *parameters, object, config);
  if (std::ranges::find(types, true) != types.end() || parameters->has(sliding))
    ropes.sliding = read_rope_of(sliding, *parameters, object, config);
  return ropes;
}

/// The last layers, which read the keys and values of others.
struct Sharing {
  std::int64_t first;  ///< of these layers
  bool wide;           ///< whether their MLPs are twice as wide

  /// The layer whose keys and values the layer reads: the last one of its type before all that share.
  std::optional<std::int64_t> producer(std::int64_t layer, const LayerTypes& types) const {
    if (layer < first) return std::nullopt;
    for (std::int64_t from = first - 1; from >= 0; --from)
      if (types[static_cast<std::size_t>(from)] == types[static_cast<std::size_t>(layer)]) return from;
    return std::nullopt;
  }
};

Sharing read_sharing(const JsonView& object, const LayerTypes& types) {
  std::int64_t count = 0;
  bool wide = false;
  ReadKeys keys(object);
  keys.key({"num_kv_shared_layers"}, count);
  keys.key({"use_double_wide_mlp"}, wide);
  const std::int64_t layers = std::ssize(types);
  require(count >= 0 && count < layers, object.file(), ": 'num_kv_shared_layers': want 0 to ", layers - 1,
          ", so that a layer has keys and values of its own, got ", count);
  const Sharing sharing{layers - count, wide};
  for (std::int64_t layer = sharing.first; layer < layers; ++layer)
    require(sharing.producer(layer, types).has_value(), object.file(), ": 'num_kv_shared_layers' is ", count,
            ": want keys and values for layer ", layer, ", a layer of ",
            types[static_cast<std::size_t>(layer)] ? sliding : full,
            ", got no layer of this type with keys of its own");
  return sharing;
}

/// The attention of layers of each type, where they have keys of their own.
struct AttentionOfTypes {
  AttentionConfig full, sliding;
};

/// Gives blocks that differ from the common config configs of their own. pre: the common attention is that of
/// layers that slide.
void set_blocks(ModelConfig& config, const AttentionOfTypes& attention, const LayerTypes& types,
                const Sharing& sharing) {
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    const std::int64_t layer = config.names.layer(i);
    BlockConfig own = config.common();
    const int slot = config.names.slot(i);
    const auto from = sharing.producer(layer, types);
    if (slot == attention_slot) {
      if (!types[static_cast<std::size_t>(layer)]) own.attention = attention.full;
      if (from) own.attention.kv_block = config.names.first_block(*from) + attention_slot;
    } else if (from && sharing.wide) {
      if (slot == mlp_slot) own.mlp.intermediate_size *= 2;
      if (slot == moe_slot) own.moe.shared_expert_intermediate_size *= 2;
    }
    if (slot == moe_slot || slot == inputs_slot) own.residual = Residual::norm_after;
    if (own != config.common()) config.own_configs.emplace(i, std::move(own));
  }
}

void read_class(const ConfigClass& of, ModelConfig& config, const JsonView& object) {
  check_keys(object);
  config = decoder_layers::defaults();
  config.residual = Residual::norm_before_and_after;
  config.layer_scalars = true;
  config.mlp.gate = GateActivation::gelu_tanh;
  config.vocab_size = 262144;
  config.hidden_size = 2304;
  config.mlp.intermediate_size = 9216;
  config.attention.num_attention_heads = 8;
  config.attention.num_key_value_heads = 4;
  config.attention.head_dim = 256;
  config.attention.head_norm = NormKind::rmsnorm;
  config.attention.value_norm = true;
  config.attention.score_scale = 1;
  config.attention.window = of.sliding_window;
  config.max_position_embeddings = of.max_position_embeddings;
  config.tie_word_embeddings = true;
  config.pad_token_id = 0;
  config.bos_token_id = 2;
  config.eos_token_id = {1};
  ReadKeys keys(object);
  visit_keys(config, keys);
  keys.key({"sliding_window"}, config.attention.window);
  keys.key({"final_logit_softcapping"}, config.logit_softcap);
  require(config.attention.window >= 1, object.file(), ": 'sliding_window': want at least 1, got ",
          config.attention.window);
  config.attention.output_bias = config.attention.qkv_bias;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  bool experts = false, keys_are_values = false;
  if (of.inputs_and_experts) {
    experts = read_experts(config, object);
    read_inputs(config, object);
  } else {
    warn_of_inputs_and_experts(object);
  }
  keys.key({"attention_k_eq_v"}, keys_are_values);
  add_blocks(config, object, *of.family->names, experts);
  const LayerTypes types = read_types(config, object);
  const RopesOfTypes ropes = read_ropes(config, object, types);
  const HeadsOfTypes heads = read_heads(config, object, types, keys_are_values);
  AttentionOfTypes attention{config.attention, config.attention};
  set_heads(attention.full, heads.full);
  set_heads(attention.sliding, heads.sliding);
  attention.full.rope = ropes.full;
  attention.sliding.rope = ropes.sliding;
  attention.full.window = 0;
  attention.full.keys_are_values = keys_are_values;
  config.attention = attention.sliding;
  set_blocks(config, attention, types, read_sharing(object, types));
}

void write_sharing(const ModelConfig& config, Json& to) {
  const std::int64_t layers = layers_of(config), width = config.mlp.intermediate_size;
  std::int64_t sharing = 0;
  while (sharing < layers && decoder_layers::attention_of(config, layers - 1 - sharing).kv_block) ++sharing;
  const std::int64_t last_mlp = config.names.first_block(layers - 1) + 1;
  const BlockConfig& last = config.block(last_mlp);
  to["num_kv_shared_layers"] = sharing;
  to["use_double_wide_mlp"] = config.names.slot(last_mlp) == mlp_slot
                                  ? last.mlp.intermediate_size != width
                                  : last.moe.shared_expert_intermediate_size != width;
}

void write_class(const ConfigClass& of, const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, of.architecture, of.family->model_type, visit_keys, to, activation);
  const AttentionConfig& last = decoder_layers::attention_of(config, layers_of(config) - 1);
  to["final_logit_softcapping"] = config.logit_softcap > 0 ? Json(config.logit_softcap) : Json(nullptr);
  to["rope_parameters"] = {{full, rope_object(last.rope)}, {sliding, rope_object(config.attention.rope)}};
  to["sliding_window"] = config.attention.window;
  to["layer_types"] = decoder_layers::layer_types(config);
  to["per_layer_config"] = per_layer_heads(config);
  to["attention_k_eq_v"] = last.keys_are_values;
  write_sharing(config, to);
  if (!of.inputs_and_experts) return;
  to["hidden_size_per_layer_input"] = config.per_layer_input.size;
  to["vocab_size_per_layer_input"] = config.vocab_size;
  const bool experts = config.has(moe_block);
  to["enable_moe_block"] = experts;
  if (!experts) return;
  ModelConfig values = config;
  WriteKeys keys(to);
  visit_experts(values, keys);
}

constexpr std::array wrappers{Wrapper{"gemma4", true}};
constexpr std::array unified_wrappers{Wrapper{"gemma4_unified", true}};
constexpr std::string_view tp_plans[] = {"gemma4_tp_plan"};
constexpr std::string_view unified_tp_plans[] = {"gemma4_unified_tp_plan"};

}  // namespace

constinit const Family gemma4_family{
    .model_type = "gemma4_text",
    .has_class =
        [](std::string_view name) { return name == "Gemma4ForCausalLM" || name == "Gemma4TextModel"; },
    .names = &text_names,
    .read = [](ModelConfig& config, const JsonView& object) { read_class(text_class, config, object); },
    .write = [](const ModelConfig& config, Json& to) { write_class(text_class, config, to); },
    .automodel_step_flops = decoder_layers::automodel_flops,
    .wrappers = wrappers,
    .tp_plans = tp_plans};

constinit const Family gemma4_unified_family{
    .model_type = "gemma4_unified_text",
    .has_class =
        [](std::string_view name) {
          return name == "Gemma4UnifiedForCausalLM" || name == "Gemma4UnifiedTextModel";
        },
    .names = &unified_names,
    .read = [](ModelConfig& config, const JsonView& object) { read_class(unified_class, config, object); },
    .write = [](const ModelConfig& config, Json& to) { write_class(unified_class, config, to); },
    .automodel_step_flops = decoder_layers::automodel_flops,
    .wrappers = unified_wrappers,
    .tp_plans = unified_tp_plans};

}  // namespace nemocube
