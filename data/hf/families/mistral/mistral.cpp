#include "data/hf/families/mistral/mistral.h"

#include <array>
#include <nlohmann/json.hpp>

#include "data/hf/families/decoder_layers.h"
#include "data/hf/families/mistral/windows.h"
#include "data/hf/rope_keys.h"

namespace nemocube {
namespace {

constexpr NameTable names = decoder_layers::names;

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  decoder_layers::visit_sizes(config, keys);
  decoder_layers::visit_other_keys(config, keys);
}

void read(ModelConfig& config, const JsonView& object) {
  decoder_layers::want_silu(object);
  config = decoder_layers::defaults();
  config.vocab_size = 32000;
  config.hidden_size = 4096;
  config.mlp.intermediate_size = 14336;
  config.attention.num_attention_heads = 32;
  config.attention.num_key_value_heads = 8;
  config.max_position_embeddings = 131072;
  ReadKeys keys(object);
  visit_keys(config, keys);
  config.attention.rope = read_rope(object, 10000, config.max_position_embeddings);
  decoder_layers::add_layers(config, object, names, 32);
  decoder_layers::warn_of_dropout(object);
  read_mistral_window(config, object, 4096);
}

void write(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "MistralForCausalLM", mistral_family.model_type, visit_keys, to);
  write_rope(config.attention.rope, to);
  write_mistral_window(config, to);
}

constexpr std::string_view mistral_tp_plans[] = {"mistral_tp_plan"};

}  // namespace

constinit const Family mistral_family{
    .model_type = "mistral",
    .has_class = [](std::string_view name) { return is_class_named(name, "Mistral"); },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = decoder_layers::automodel_flops,
    .wrappers = mistral3_wrapper,
    .tp_plans = mistral_tp_plans};

}  // namespace nemocube
