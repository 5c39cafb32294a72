#include "data/hf/families/qwen/qwen3.h"

#include <nlohmann/json.hpp>

#include "data/hf/families/decoder_layers.h"
#include "data/hf/families/qwen/windows.h"
#include "data/hf/rope_keys.h"

namespace nemocube {
namespace {

constexpr NameTable names = decoder_layers::names;

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  decoder_layers::visit_sizes(config, keys);
  keys.key({"attention_bias"}, config.attention.qkv_bias);
  decoder_layers::visit_other_keys(config, keys);
}

void read(ModelConfig& config, const JsonView& object) {
  decoder_layers::want_silu(object);
  config = decoder_layers::defaults();
  config.vocab_size = 151936;
  config.hidden_size = 4096;
  config.mlp.intermediate_size = 22016;
  config.attention.num_attention_heads = config.attention.num_key_value_heads = 32;
  config.attention.head_dim = 128;
  config.attention.head_norm = NormKind::rmsnorm;
  config.max_position_embeddings = 32768;
  config.bos_token_id = std::nullopt;
  config.eos_token_id.clear();
  ReadKeys keys(object);
  visit_keys(config, keys);
  config.attention.output_bias = config.attention.qkv_bias;
  config.attention.rope = read_rope(object, 10000, config.max_position_embeddings);
  decoder_layers::add_layers(config, object, names, 32);
  decoder_layers::warn_of_dropout(object);
  read_qwen_windows(config, object);
}

void write(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "Qwen3ForCausalLM", qwen3_family.model_type, visit_keys, to);
  write_rope(config.attention.rope, to);
  write_qwen_windows(config, to);
}

constexpr std::string_view qwen3_tp_plans[] = {"qwen3_tp_plan"};

}  // namespace

constinit const Family qwen3_family{
    .model_type = "qwen3",
    .has_class = [](std::string_view name) { return is_class_named(name, "Qwen3"); },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = decoder_layers::automodel_flops,
    .tp_plans = qwen3_tp_plans};

}  // namespace nemocube
