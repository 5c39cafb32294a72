#include "data/hf/families/nemotron_h/nemotron_h.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "core/quote.h"
#include "data/hf/config_keys.h"
#include "data/hf/hf_config_refused.h"
#include "data/hf/per_layer_config.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_kinds.h"
#include "model/blocks/mamba/mamba_block.h"
#include "model/blocks/mlp/mlp_block.h"
#include "model/blocks/moe/moe_block.h"

namespace nemocube {
namespace {

/// Of all block_kinds(), those that models of the family have.
constexpr std::array kinds{&mamba_block, &attention_block, &mlp_block, &moe_block};
bool is_of_family(BlockKind kind) {
  return std::ranges::any_of(kinds, [&](const BlockKind* of_family) { return *of_family == kind; });
}

/// "mamba (linear_attention, M), mlp (-) or moe (E)"
std::string known_blocks() {
  std::string text;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const char* between = i == 0 ? "" : i + 1 < kinds.size() ? ", " : " or ";
    const BlockKind kind = *kinds[i];
    const std::string alias = kind->alias ? cat(kind->alias, ", ") : "";
    text += cat(between, kind, " (", alias, kind->letter, ")");
  }
  return text;
}

/// The letter of a block that a list names, "M" or "mamba".
char read_block(const JsonView& item, std::string_view other_letters = "") {
  const std::string_view name = item.string();
  if (name.size() == 1 && other_letters.find(name) != other_letters.npos) return name[0];
  const auto kind = name.size() == 1 ? find_block_kind(name[0]) : find_block_kind(name);
  if (!kind) item.refuse(known_blocks());
  return letter_of(*kind);
}

std::vector<BlockKind> read_list(const JsonView& list) {
  std::string letters;
  for (const JsonView& item : list.elements()) letters += read_block(item);
  return parse_pattern(letters).blocks;
}

/// A pattern is a string of letters or a list of them.
BlockPattern read_pattern(const JsonView& pattern) {
  std::string letters;
  if (pattern.value().is_array())
    for (const JsonView& item : pattern.elements()) letters += read_block(item, "|/");
  else
    letters = pattern.string();
  try {
    return parse_pattern(letters);
  } catch (const Error& error) {
    fail(pattern.file(), ": ", error.what());
  }
}

/// Multi-token prediction spelled behind the layers: "ME*E/*E/*E".
void read_pattern_tail(ModelConfig& config, const BlockPattern& pattern, const JsonView& object) {
  if (pattern.mtp.empty()) return;
  for (const auto& depth : pattern.mtp)
    require(depth == pattern.mtp[0], object.file(),
            ": 'hybrid_override_pattern': want the same blocks behind each '/', got ",
            brief(to_pattern(pattern.mtp[0])), " and ", brief(to_pattern(depth)));
  config.mtp_blocks = pattern.mtp[0];
  config.num_nextn_predict_layers = static_cast<std::int64_t>(pattern.mtp.size());
}

void read_layers(ModelConfig& config, const JsonView& object) {
  const std::string& file = object.file();
  std::optional<JsonView> pattern = object.find("hybrid_override_pattern");
  std::optional<std::vector<BlockKind>> list;
  for (const char* key : {"layers_block_type", "layer_types"})
    if (const auto value = object.find(key)) {
      const std::vector<BlockKind> blocks = read_list(*value);
      require(!list || *list == blocks, file,
              ": 'layers_block_type' and 'layer_types' differ: ", brief(to_pattern(list ? *list : blocks)),
              " and ", brief(to_pattern(blocks)));
      list = blocks;
    }
  require(list || pattern, file,
          ": the layers are not given; want hybrid_override_pattern, layers_block_type or layer_types");
  if (pattern) {
    const BlockPattern parsed = read_pattern(*pattern);
    config.blocks = parsed.blocks;
    read_pattern_tail(config, parsed, object);
  }
  if (list) config.blocks = *list;
  if (const auto count = object.find("num_hidden_layers"); count && count->integer() != config.num_layers())
    log_warning(file, ": 'num_hidden_layers' is ", count->integer(), ", but ", config.num_layers(),
                " layers are listed; the list counts");

  std::optional<std::vector<BlockKind>> mtp_list;
  if (const auto value = object.find("mtp_layers_block_type")) mtp_list = read_list(*value);
  if (mtp_list && *mtp_list != usual_mtp_blocks()) {
    config.mtp_blocks = *mtp_list;
  } else if (const auto value = object.find("mtp_hybrid_override_pattern")) {
    const BlockPattern parsed = read_pattern(*value);
    if (!parsed.mtp.empty()) value->refuse("the blocks of one depth, without '/'");
    config.mtp_blocks = parsed.blocks;
  }
}

void check_fixed(const JsonView& object, const char* key, const char* wish) {
  const auto value = object.find(key);
  if (value && value->string() != wish) value->refuse(cat('"', wish, '"'));
}

/// Hugging Face's class gives every MoE block a shared expert.
void want_shared_experts(const ModelConfig& config, const JsonView& object) {
  const ModelSetup setup(config);
  for (const BlockVariant& variant : setup.variants())
    require(variant.kind != moe_block || variant.config->moe.has_shared_expert(), object.file(), ": ",
            variant.own ? cat("block ", *variant.own, ": ") : std::string(),
            "moe_shared_expert_intermediate_size: want at least 1, got ",
            variant.config->moe.shared_expert_intermediate_size);
}

/// Warns about keys that seem to shape the model but have no effect, here as in Hugging Face's class.
void warn_without_effect(const JsonView& object, bool has_moe) {
  const auto warn = [&](const char* key, const auto& value) {
    log_warning(object.file(), ": '", key, "' is ", value, " and has no effect");
  };
  for (const char* key : {"attention_dropout", "hidden_dropout"})
    if (const auto value = object.find(key); value && value->number() != 0) warn(key, value->number());
  if (const auto value = object.find("attention_bias"); value && value->boolean())
    warn("attention_bias", "true");
  if (const auto value = object.find("sliding_window")) warn("sliding_window", value->integer());
  // Hugging Face's class gives every MoE block one shared expert of moe_shared_expert_intermediate_size.
  if (const auto value = object.find("n_shared_experts"); value && value->integer() != 1 && has_moe)
    warn("n_shared_experts", value->integer());
}

bool is_puzzle(std::string_view name) {
  return name.find("Puzzle") != name.npos || name.find("puzzle") != name.npos;
}

void refuse_puzzle(const JsonView& config) {
  const auto refuse = [&](std::string_view sign) {
    fail(config.file(), ": NemotronHPuzzle models (seen by ", quote(sign),
         ") are not supported; want a nemotron_h model, whose per_layer_config says how blocks differ");
  };
  if (const auto names = config.find("architectures"))
    for (const JsonView& name : names->elements())
      if (is_puzzle(name.string())) refuse(name.string());
  if (const auto type = config.find("model_type"); type && is_puzzle(type->string())) refuse(type->string());
  // Nemotron-NAS models (DeciLMForCausalLM), which are derived from Llama, have this key as well.
  if (find_filled(config, "block_configs") && find_family(config) == &nemotron_h_family)
    refuse("block_configs");
}

bool is_class_of_family(std::string_view architecture) {
  return architecture == "NemotronHModel" || architecture.starts_with("NemotronHFor");
}

/// In the order in which the keys are written.
void visit_keys(ModelConfig& config, ConfigKeys& keys) {
  keys.key({"vocab_size"}, config.vocab_size);
  keys.key({"hidden_size"}, config.hidden_size);
  keys.key({"layer_norm_epsilon", "norm_eps", "rms_norm_eps"}, config.layer_norm_epsilon);
  keys.key({"residual_in_fp32"}, config.residual_in_fp32);
  keys.key({"tie_word_embeddings"}, config.tie_word_embeddings);
  config.visit(keys);
  keys.key({"num_nextn_predict_layers"}, config.num_nextn_predict_layers);
  keys.key({"initializer_range"}, config.initializer_range);
  keys.key({"rescale_prenorm_residual"}, config.rescale_prenorm_residual);
  keys.key({"max_position_embeddings"}, config.max_position_embeddings);
}

void read(ModelConfig& config, const JsonView& object) {
  check_fixed(object, "mamba_hidden_act", "silu");
  check_fixed(object, "mlp_hidden_act", "relu2");
  read_layers(config, object);
  for (const auto* blocks : {&config.blocks, &config.mtp_blocks})
    for (const BlockKind kind : *blocks)
      require(is_of_family(kind), object.file(), ": a layer of the kind ", quote(name_of(kind)), "; want ",
              known_blocks());
  ReadKeys keys(object);
  visit_keys(config, keys);
  if (object.has_null("num_key_value_heads") && !object.has("num_query_groups"))
    config.attention.num_key_value_heads = config.attention.num_attention_heads;
  require(!config.tie_word_embeddings, object.file(),
          ": tie_word_embeddings: want false (NemotronH keeps embeddings and lm_head apart), got true");
  read_per_layer_config(config, object);
  want_shared_experts(config, object);
  warn_without_effect(object, config.has_experts());
}

void write(const ModelConfig& config, Json& to) {
  to["architectures"] = {"NemotronHForCausalLM"};
  to["model_type"] = nemotron_h_family.model_type;
  to["num_hidden_layers"] = config.num_layers();
  to["hybrid_override_pattern"] = to_pattern(config.blocks);
  if (config.num_nextn_predict_layers > 0) to["mtp_hybrid_override_pattern"] = to_pattern(config.mtp_blocks);
  to["attention_bias"] = false;
  to["n_shared_experts"] = 1;
  to["mlp_hidden_act"] = "relu2";
  to["mamba_hidden_act"] = "silu";
  ModelConfig values = config;
  WriteKeys keys(to);
  visit_keys(values, keys);
  keys.finish();
  write_per_layer_config(config, to);
}

constexpr std::string_view nemotron_h_tp_plans[] = {"nemotron_h_tp_plan"};

}  // namespace

constinit const Family nemotron_h_family{.model_type = "nemotron_h",
                                         .has_class = is_class_of_family,
                                         .names = &usual_names,
                                         .refuse_relatives = refuse_puzzle,
                                         .read = read,
                                         .write = write,
                                         .automodel_step_flops = nemotron_h_automodel_flops,
                                         .tp_plans = nemotron_h_tp_plans};

}  // namespace nemocube
