#include "data/hf/families/llama/llama.h"

#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/hf/families/decoder_layers.h"
#include "data/hf/rope_keys.h"

namespace nemocube {
namespace {

constexpr NameTable names = decoder_layers::names;

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  keys.key({"vocab_size"}, config.vocab_size);
  keys.key({"hidden_size"}, config.hidden_size);
  config.mlp.visit(keys);
  config.attention.visit(keys);
  keys.key({"attention_bias"}, config.attention.qkv_bias);
  decoder_layers::visit_other_keys(config, keys);
}

void read(ModelConfig& config, const JsonView& object) {
  decoder_layers::want_silu(object);
  config = decoder_layers::defaults();
  config.vocab_size = 32000;
  config.hidden_size = 4096;
  config.mlp.intermediate_size = 11008;
  config.attention.num_attention_heads = 32;
  config.max_position_embeddings = 2048;
  ReadKeys keys(object);
  visit_keys(config, keys);
  config.attention.output_bias = config.attention.qkv_bias;
  config.attention.rope = read_rope(object, 10000, config.max_position_embeddings);
  decoder_layers::add_layers(config, object, names, 32);
  decoder_layers::warn_of_dropout(object);
  if (const auto value = object.find("sliding_window"))
    log_warning(object.file(), ": 'sliding_window' is ", brief(value->value()),
                " and has no effect in models of this type");
}

void write(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "LlamaForCausalLM", llama_family.model_type, visit_keys, to);
  write_rope(config.attention.rope, to);
}

// AutoModel names the plan of Llama-Nemotron Super, whose exports with equal layers are Llama models.
constexpr std::string_view llama_tp_plans[] = {"llama_tp_plan", "llama_nemotron_super_tp_plan"};

}  // namespace

constinit const Family llama_family{
    .model_type = "llama",
    .has_class = [](std::string_view name) { return is_class_named(name, "Llama"); },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = decoder_layers::automodel_flops,
    .tp_plans = llama_tp_plans};

}  // namespace nemocube
