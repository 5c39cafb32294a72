#include "data/hf/families/mistral/ministral3.h"

#include <array>
#include <nlohmann/json.hpp>

#include "data/hf/families/decoder_layers.h"
#include "data/hf/families/mistral/windows.h"
#include "data/hf/rope_keys.h"

namespace nemocube {
namespace {

constexpr NameTable names = decoder_layers::names;
constexpr const char* beta_key = "llama_4_scaling_beta";
constexpr std::array<std::string_view, 1> own_rope_keys{beta_key};

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  decoder_layers::visit_sizes(config, keys);
  decoder_layers::visit_other_keys(config, keys);
}

/// What Hugging Face's class has where rope_parameters and rope_scaling are absent.
constexpr RopeConfig usual_rope() {
  return {.type = RopeType::yarn,
          .rope_theta = 1e6,
          .factor = 16,
          .original_max_position_embeddings = 16384,
          .mscale = 1,
          .mscale_all_dim = 1};
}
constexpr PositionScale usual_scale{.beta = 0.1, .positions = 16384};

PositionScale read_scale(const JsonView& object, const RopeConfig& rope) {
  for (const char* key : {"rope_parameters", "rope_scaling"})
    if (const auto at = object.find(key))
      if (const auto beta = at->find(beta_key); beta && beta->number() != 0) {
        if (rope.original_max_position_embeddings < 1)
          beta->refuse("it beside original_max_position_embeddings, with a rope_type that has them");
        return {beta->number(), rope.original_max_position_embeddings};
      }
  return {};
}

}  // namespace

void ministral3::read(ModelConfig& config, const JsonView& object, const NameTable& of_names) {
  decoder_layers::want_silu(object);
  config = decoder_layers::defaults();
  config.vocab_size = 131072;
  config.hidden_size = 4096;
  config.mlp.intermediate_size = 14336;
  config.attention.num_attention_heads = 32;
  config.attention.num_key_value_heads = 8;
  config.attention.head_dim = 128;
  config.layer_norm_epsilon = 1e-5;
  config.max_position_embeddings = 262144;
  config.pad_token_id = 11;
  ReadKeys keys(object);
  visit_keys(config, keys);
  AttentionConfig& attention = config.attention;
  if (object.find("rope_parameters") || object.find("rope_scaling") || object.find("rope_theta")) {
    attention.rope = read_rope(object, 10000, config.max_position_embeddings, own_rope_keys);
    attention.position_scale = read_scale(object, attention.rope);
  } else {
    attention.rope = usual_rope();
    attention.position_scale = usual_scale;
  }
  decoder_layers::add_layers(config, object, of_names, 34);
  decoder_layers::warn_of_dropout(object);
  read_mistral_window(config, object, 0);
}

void ministral3::write(const ModelConfig& config, const char* architecture, std::string_view model_type,
                       Json& to) {
  decoder_layers::write_keys(config, architecture, model_type, visit_keys, to);
  // Hugging Face's class wants the keys of rope_parameters, which older releases do not know either.
  write_rope_parameters(config.attention.rope, to);
  to["rope_parameters"][beta_key] = config.attention.position_scale.beta;
  write_mistral_window(config, to);
}

namespace {

void read(ModelConfig& config, const JsonView& object) { ministral3::read(config, object, names); }

void write(const ModelConfig& config, Json& to) {
  ministral3::write(config, "Ministral3ForCausalLM", ministral3_family.model_type, to);
}

constexpr std::string_view ministral3_tp_plans[] = {"ministral3_tp_plan"};

}  // namespace

constinit const Family ministral3_family{
    .model_type = "ministral3",
    .has_class = [](std::string_view name) { return is_class_named(name, "Ministral3"); },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = decoder_layers::automodel_flops,
    .wrappers = mistral3_wrapper,
    .tp_plans = ministral3_tp_plans};

}  // namespace nemocube
