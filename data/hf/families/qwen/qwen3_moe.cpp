#include "data/hf/families/qwen/qwen3_moe.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"
#include "data/hf/families/decoder_layers.h"
#include "data/hf/rope_keys.h"
#include "model/blocks/block_type.h"
#include "model/blocks/mlp/mlp_block.h"
#include "model/blocks/moe/moe_block.h"

namespace nemocube {
namespace {

constexpr std::array<std::string_view, 2> stacks{"experts.gate_up_proj", "experts.down_proj"};
constexpr NameTable names{.rows = decoder_layers::rows, .stacks = stacks, .aliases = decoder_layers::aliases};

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  decoder_layers::visit_sizes(config, keys);
  keys.key({"moe_intermediate_size"}, config.moe.intermediate_size);
  keys.key({"num_experts", "num_local_experts"}, config.moe.n_routed_experts);
  keys.key({"num_experts_per_tok"}, config.moe.num_experts_per_tok);
  keys.key({"norm_topk_prob"}, config.moe.norm_topk_prob);
  keys.key({"attention_bias"}, config.attention.qkv_bias);
  decoder_layers::visit_other_keys(config, keys);
}

std::int64_t mlp_block_of(const ModelConfig& config, std::int64_t layer) {
  return config.names.first_block(layer) + decoder_layers::mlp_slot;
}

bool has_mlp(const ModelConfig& config, std::int64_t layer) {
  return config.blocks[static_cast<std::size_t>(mlp_block_of(config, layer))] == mlp_block;
}

/// Puts experts in the layers that are to have them.
void read_experts(ModelConfig& config, const JsonView& object) {
  std::int64_t step = 1;
  ReadKeys(object).key({"decoder_sparse_step"}, step);
  require(step >= 1, object.file(), ": 'decoder_sparse_step': want at least 1, got ", step);
  const std::int64_t layers = config.names.layers(config.num_layers());
  std::vector<std::int64_t> dense;
  if (const auto list = object.find("mlp_only_layers"); list && !object.has_null("mlp_only_layers"))
    for (const JsonView& layer : list->elements()) dense.push_back(layer.integer());
  for (std::int64_t layer = 0; layer < layers; ++layer)
    if ((layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end())
      config.blocks[static_cast<std::size_t>(mlp_block_of(config, layer))] = moe_block;
}

void read_window(ModelConfig& config, const JsonView& object) {
  bool use = false;
  std::int64_t window = 4096;
  ReadKeys keys(object);
  keys.key({"use_sliding_window"}, use);
  keys.key({"sliding_window"}, window);
  if (!use || object.has_null("sliding_window")) return;
  require(window >= 1, object.file(), ": 'sliding_window': want at least 1, got ", window);
  config.attention.window = window;
}

void read(ModelConfig& config, const JsonView& object) {
  decoder_layers::want_silu(object);
  config = decoder_layers::defaults();
  config.vocab_size = 151936;
  config.hidden_size = 2048;
  config.mlp.intermediate_size = 6144;
  config.attention.num_attention_heads = 32;
  config.attention.num_key_value_heads = 4;
  config.attention.head_norm = NormKind::rmsnorm;
  config.moe.n_routed_experts = 128;
  config.moe.num_experts_per_tok = 8;
  config.moe.intermediate_size = 768;
  config.moe.shared_expert_intermediate_size = 0;
  config.moe.norm_topk_prob = false;
  config.moe.scores = RouterScores::softmax;
  config.moe.correction_bias = config.moe.router_in_f32 = false;
  config.moe.gate = GateActivation::silu;
  config.max_position_embeddings = 32768;
  config.bos_token_id = std::nullopt;
  config.eos_token_id.clear();
  ReadKeys keys(object);
  visit_keys(config, keys);
  config.attention.output_bias = config.attention.qkv_bias;
  config.attention.rope = read_rope(object, 10000, config.max_position_embeddings);
  decoder_layers::add_layers(config, object, names, 24);
  read_experts(config, object);
  read_window(config, object);
  decoder_layers::warn_of_dropout(object);
  if (const auto asks = object.find("output_router_logits"); asks && asks->boolean())
    log_warning(object.file(),
                ": 'output_router_logits' is true and has no effect: model.moe.aux_loss_coeff of ",
                "a recipe asks for the router's loss");
}

void write(const ModelConfig& config, Json& to) {
  decoder_layers::write_keys(config, "Qwen3MoeForCausalLM", qwen3_moe_family.model_type, visit_keys, to);
  Json dense = Json::array();
  for (std::int64_t layer = 0; layer < config.names.layers(config.num_layers()); ++layer)
    if (has_mlp(config, layer)) dense.push_back(layer);
  to["decoder_sparse_step"] = 1;
  to["mlp_only_layers"] = std::move(dense);
  const std::int64_t window = config.attention.window;
  to["use_sliding_window"] = window > 0;
  to["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  write_rope(config.attention.rope, to);
}

/// AutoModel counts experts in every layer.
double step_flops(const ModelSetup& setup, std::int64_t sequences, std::int64_t length) {
  const ModelConfig& c = setup.config;
  const double h = real(c.hidden_size), layers = real(c.names.layers(c.num_layers())),
               groups = real(c.attention.num_key_value_heads) / real(c.attention.num_attention_heads),
               attention = real(c.attention.q_width()) * (2 * groups + 2 + real(length) / h),
               experts = 3 * real(c.moe.num_experts_per_tok) * real(c.moe.intermediate_size);
  return real(sequences) * real(length) * 6 * h * (layers * (attention + experts) + real(c.vocab_size));
}

constexpr std::string_view tp_plans[] = {"qwen3_moe_tp_plan"};

}  // namespace

constinit const Family qwen3_moe_family{
    .model_type = "qwen3_moe",
    .has_class = [](std::string_view name) { return is_class_named(name, "Qwen3Moe"); },
    .names = &names,
    .read = read,
    .write = write,
    .automodel_step_flops = step_flops,
    .tp_plans = tp_plans};

}  // namespace nemocube
