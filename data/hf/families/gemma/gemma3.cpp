#include "data/hf/families/gemma/gemma3.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/hf/families/decoder_layers.h"
#include "data/hf/hf_config_refused.h"
#include "data/hf/rope_keys.h"

namespace nemocube {
namespace {

using decoder_layers::attention_slot, decoder_layers::mlp_slot;

constexpr std::array rows{
    NameRow{NamePart::front, "embeddings", "model.embed_tokens"},
    NameRow{NamePart::block, "norm", "model.layers.{}.input_layernorm", attention_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.self_attn", attention_slot},
    NameRow{NamePart::block, post_norm, "model.layers.{}.post_attention_layernorm", attention_slot},
    NameRow{NamePart::block, "norm", "model.layers.{}.pre_feedforward_layernorm", mlp_slot},
    NameRow{NamePart::mixer, "", "model.layers.{}.mlp", mlp_slot},
    NameRow{NamePart::block, post_norm, "model.layers.{}.post_feedforward_layernorm", mlp_slot},
    NameRow{NamePart::tail, "norm", "model.norm"},
    NameRow{NamePart::tail, "head", "lm_head"},
};
constexpr NameTable names{.rows = rows, .aliases = decoder_layers::aliases};

constexpr decoder_layers::ActivationKey activation{"hidden_activation", "gelu_pytorch_tanh"};
constexpr const char *full = "full_attention", *sliding = "sliding_attention";
constexpr double full_theta = 1e6, sliding_theta = 1e4;

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  decoder_layers::visit_sizes(config, keys);
  keys.key({"attention_bias"}, config.attention.qkv_bias);
  decoder_layers::visit_other_keys(config, keys);
}

void check_activation(const JsonView& object) {
  const auto given = object.find(activation.key);
  if (given && given->string() != activation.name) given->refuse(cat('"', activation.name, '"'));
}

void check_softcaps(ModelConfig& config, const JsonView& object) {
  ReadKeys(object).key({"final_logit_softcapping"}, config.logit_softcap);
  if (const auto cap = object.find("attn_logit_softcapping"))
    log_warning(object.file(), ": 'attn_logit_softcapping' is ", cap->number(),
                " and has no effect in models of this type, in transformers either");
  if (const auto both = object.find("use_bidirectional_attention"); both && both->boolean())
    both->refuse("false: attention here is causal");
}

/// Of layers of one type, by rope_parameters.
RopeConfig read_rope_of(const char* type, const JsonView& parameters, const JsonView& object, double theta,
                        std::int64_t positions) {
  if (const auto own = parameters.find(type)) return read_rope_object(*own, object, theta, positions);
  return {.type = RopeType::standard, .rope_theta = theta};
}

/// Sets the rotary embedding of layers that see all keys. Returns that of those that slide.
RopeConfig read_ropes(ModelConfig& config, const JsonView& object) {
  double of_full = full_theta, of_sliding = sliding_theta;
  ReadKeys keys(object);
  keys.key({"rope_theta"}, of_full);
  keys.key({"rope_local_base_freq"}, of_sliding);
  const std::int64_t positions = config.max_position_embeddings;
  const auto parameters = find_filled(object, "rope_parameters"),
             scaling = find_filled(object, "rope_scaling");
  if (!parameters) {
    config.attention.rope = {.type = RopeType::standard, .rope_theta = of_full};
    if (scaling) config.attention.rope = read_rope_object(*scaling, object, of_full, positions);
    return {.type = RopeType::standard, .rope_theta = of_sliding};
  }
  if (scaling) scaling->refuse("it absent, because rope_parameters says the same");
  for (const auto& [key, value] : parameters->value().items())
    if (key != full && key != sliding)
      parameters->at(key.c_str()).refuse(cat("only the keys ", full, " and ", sliding));
  config.attention.rope = read_rope_of(full, *parameters, object, of_full, positions);
  return read_rope_of(sliding, *parameters, object, of_sliding, positions);
}

void read_layers(ModelConfig& config, const JsonView& object) {
  std::int64_t window = 4096, pattern = 6;
  ReadKeys keys(object);
  keys.key({"sliding_window"}, window);
  keys.key({"sliding_window_pattern"}, pattern);
  if (object.has_null("sliding_window")) window = 0;
  require(window >= 0, object.file(), ": 'sliding_window': want at least 1, or null, got ", window);
  require(pattern >= 1, object.file(), ": 'sliding_window_pattern': want at least 1, got ", pattern);
  const RopeConfig sliding_rope = read_ropes(config, object);
  decoder_layers::add_layers(config, object, names, 26);
  const std::int64_t layers = config.names.layers(config.num_layers());
  const std::vector<bool> types = decoder_layers::read_layer_types(object, layers, window);
  const auto slides = [&](std::int64_t layer) {
    return types.empty() ? (layer + 1) % pattern != 0 : types[static_cast<std::size_t>(layer)];
  };
  AttentionConfig of_sliding = config.attention;
  of_sliding.window = window;
  of_sliding.rope = sliding_rope;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    require(window > 0 || !slides(layer), object.file(),
            ": 'sliding_window': want at least 1, because layer ", layer, " slides, got null");
  decoder_layers::set_attention(config, of_sliding, slides);
}

void read(ModelConfig& config, const JsonView& object) {
  check_activation(object);
  config = decoder_layers::defaults();
  config.norm = NormKind::rmsnorm_one_plus_w;
  config.residual = Residual::norm_before_and_after;
  config.mlp.gate = GateActivation::gelu_tanh;
  config.vocab_size = 262208;
  config.hidden_size = 2304;
  config.mlp.intermediate_size = 9216;
  config.attention.num_attention_heads = 8;
  config.attention.num_key_value_heads = 4;
  config.attention.head_dim = 256;
  config.attention.head_norm = NormKind::rmsnorm_one_plus_w;
  config.max_position_embeddings = 131072;
  config.tie_word_embeddings = true;
  config.pad_token_id = 0;
  config.bos_token_id = 2;
  config.eos_token_id = {1};
  ReadKeys keys(object);
  visit_keys(config, keys);
  config.attention.output_bias = config.attention.qkv_bias;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  std::int64_t scalar = 256;
  keys.key({"query_pre_attn_scalar"}, scalar);
  require(scalar >= 1, object.file(), ": 'query_pre_attn_scalar': want at least 1, got ", scalar);
  config.attention.score_scale = 1 / std::sqrt(static_cast<double>(scalar));
  check_softcaps(config, object);
  decoder_layers::warn_of_dropout(object);
  read_layers(config, object);
}

/// Older releases read a pattern and no layer_types.
void write_pattern(const ModelConfig& config, Json& to) {
  const std::int64_t layers = config.names.layers(config.num_layers());
  for (std::int64_t pattern = 1; pattern <= layers + 1; ++pattern) {
    bool fits = true;
    for (std::int64_t layer = 0; layer < layers; ++layer)
      fits = fits && decoder_layers::slides(config, layer) == ((layer + 1) % pattern != 0);
    if (!fits) continue;
    to["sliding_window_pattern"] = pattern;
    return;
  }
}

void write_layers(const ModelConfig& config, Json& to) {
  // Where no layer is of a type, nothing of that type counts.
  RopeConfig of_full{.type = RopeType::standard, .rope_theta = full_theta},
      of_sliding{.type = RopeType::standard, .rope_theta = sliding_theta};
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer)
    (decoder_layers::slides(config, layer) ? of_sliding : of_full) =
        decoder_layers::attention_of(config, layer).rope;
  if (of_sliding.type == RopeType::standard) {
    write_rope(of_full, to);
    to["rope_local_base_freq"] = of_sliding.rope_theta;
  } else {
    to["rope_parameters"] = {{full, rope_object(of_full)}, {sliding, rope_object(of_sliding)}};
  }
  const std::int64_t window = decoder_layers::window_of(config);
  to["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  to["layer_types"] = decoder_layers::layer_types(config);
  write_pattern(config, to);
}

void write(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "Gemma3ForCausalLM", gemma3_family.model_type, visit_keys, to,
                             activation);
  const double scale = config.attention.score_scale;
  to["query_pre_attn_scalar"] = std::llround(1 / (scale * scale));
  to["final_logit_softcapping"] = config.logit_softcap > 0 ? Json(config.logit_softcap) : Json(nullptr);
  write_layers(config, to);
}

constexpr std::array wrappers{Wrapper{"gemma3", true, false}};
constexpr std::string_view gemma3_tp_plans[] = {"gemma3_tp_plan"};

}  // namespace

constinit const Family gemma3_family{
    .model_type = "gemma3_text",
    .has_class =
        [](std::string_view name) { return name == "Gemma3ForCausalLM" || name == "Gemma3TextModel"; },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = decoder_layers::automodel_flops,
    .wrappers = wrappers,
    .tp_plans = gemma3_tp_plans};

}  // namespace nemocube
