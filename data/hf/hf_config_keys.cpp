#include "data/hf/hf_config_keys.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <variant>

namespace nemocube {
namespace {

/// A key that is read and written without conversion: the field for its value, its name, and its aliases.
template <class Config>
struct Key {
  std::variant<std::int64_t Config::*, double Config::*, bool Config::*> member;
  std::array<const char*, 4> names{};
};

using C = NemotronHConfig;
using B = BlockConfig;

// In the order in which they are written.
constexpr Key<C> first_keys[] = {
    {&C::vocab_size, {"vocab_size"}},
    {&C::hidden_size, {"hidden_size"}},
    {&C::layer_norm_epsilon, {"layer_norm_epsilon", "norm_eps", "rms_norm_eps"}},
    {&C::residual_in_fp32, {"residual_in_fp32"}},
    {&C::tie_word_embeddings, {"tie_word_embeddings"}},
};
constexpr Key<B> block_keys[] = {
    {&B::num_attention_heads, {"num_attention_heads"}},
    {&B::num_key_value_heads, {"num_key_value_heads", "num_query_groups"}},
    {&B::head_dim, {"head_dim", "attention_head_dim", "kv_channels"}},
    {&B::intermediate_size, {"intermediate_size"}},
    {&B::mlp_bias, {"mlp_bias"}},
    {&B::mamba_num_heads, {"mamba_num_heads"}},
    {&B::mamba_head_dim, {"mamba_head_dim"}},
    {&B::n_groups, {"n_groups", "mamba_n_groups", "mamba_num_groups"}},
    {&B::ssm_state_size, {"ssm_state_size", "mamba_state_dim"}},
    {&B::conv_kernel, {"conv_kernel", "mamba_d_conv"}},
    {&B::chunk_size, {"chunk_size", "mamba_chunk_size"}},
    {&B::use_conv_bias, {"use_conv_bias", "mamba_conv_bias"}},
    {&B::use_bias, {"use_bias"}},
    {&B::time_step_min, {"time_step_min", "mamba_dt_min"}},
    {&B::time_step_max, {"time_step_max", "mamba_dt_max"}},
    {&B::time_step_floor, {"time_step_floor", "mamba_dt_init_floor"}},
    {&B::n_routed_experts, {"n_routed_experts", "num_local_experts"}},
    {&B::num_experts_per_tok, {"num_experts_per_tok"}},
    {&B::moe_intermediate_size, {"moe_intermediate_size"}},
    {&B::moe_shared_expert_intermediate_size, {"moe_shared_expert_intermediate_size"}},
    {&B::moe_latent_size, {"moe_latent_size"}},
    {&B::n_group, {"n_group"}},
    {&B::topk_group, {"topk_group"}},
    {&B::norm_topk_prob, {"norm_topk_prob"}},
    {&B::routed_scaling_factor, {"routed_scaling_factor"}},
};
constexpr Key<C> last_keys[] = {
    {&C::num_nextn_predict_layers, {"num_nextn_predict_layers"}},
    {&C::initializer_range, {"initializer_range"}},
    {&C::rescale_prenorm_residual, {"rescale_prenorm_residual"}},
    {&C::max_position_embeddings, {"max_position_embeddings"}},
};
constexpr std::array limit_names{"time_step_limit", "mamba_dt_limit"};

std::optional<JsonView> find_named(const JsonView& object, std::span<const char* const> names) {
  std::optional<JsonView> found;
  const char* found_name = nullptr;
  for (const char* name : names) {
    const std::optional<JsonView> value = name ? object.find(name) : std::nullopt;
    if (!value) continue;
    if (found && found->value() != value->value())
      fail(object.file(), ": '", found_name, "' and '", name,
           "' mean the same and differ: ", brief(found->value()), " and ", brief(value->value()));
    if (!found) found_name = name;
    found = value;
  }
  return found;
}

/// An integer, or a list that says the same integer for every block.
void read_value(const JsonView& value, std::int64_t& to) {
  if (!value.value().is_array()) {
    to = value.integer();
    return;
  }
  const std::vector<JsonView> list = value.elements();
  if (list.empty()) value.refuse("an integer");
  to = list[0].integer();
  for (const JsonView& item : list)
    if (item.integer() != to)
      item.refuse(cat(to, " as for the first block, since only per_layer_config says how blocks differ"));
}
void read_value(const JsonView& value, double& to) { to = value.number(); }
void read_value(const JsonView& value, bool& to) { to = value.boolean(); }

template <class Config>
void read_keys(Config& config, const JsonView& object, std::span<const Key<Config>> keys) {
  for (const Key<Config>& key : keys)
    if (const auto value = find_named(object, key.names))
      std::visit([&](auto member) { read_value(*value, config.*member); }, key.member);
}

template <class Config>
void write_keys(const Config& config, Json& to, std::span<const Key<Config>> keys) {
  for (const Key<Config>& key : keys)
    std::visit([&](auto member) { to[key.names[0]] = config.*member; }, key.member);
}

void read_time_step_limit(BlockConfig& config, const JsonView& object) {
  const auto limit = find_named(object, limit_names);
  if (!limit) return;
  const std::vector<JsonView> ends = limit->elements();
  if (ends.size() != 2) limit->refuse("a list of two numbers");
  config.time_step_limit_low = ends[0].number();
  config.time_step_limit_high = ends[1].number();
  // Writers without a token for infinity write a number above any time step.
  if (config.time_step_limit_high >= 1e30)
    config.time_step_limit_high = std::numeric_limits<double>::infinity();
}

void write_sizes(const BlockConfig& config, Json& to) {
  write_keys<B>(config, to, block_keys);
  if (config.moe_latent_size == 0) to["moe_latent_size"] = nullptr;
}

/// Strict parsers reject Infinity.
Json time_step_limit(const BlockConfig& config) {
  return {config.time_step_limit_low, std::min(config.time_step_limit_high, 1e30)};
}

}  // namespace

std::optional<JsonView> find_any(const JsonView& object, std::initializer_list<const char*> names) {
  return find_named(object, std::span(names.begin(), names.size()));
}

void read_model_keys(NemotronHConfig& config, const JsonView& object) {
  read_keys<C>(config, object, first_keys);
  read_keys<B>(config, object, block_keys);
  read_keys<C>(config, object, last_keys);
  if (object.has_null("num_key_value_heads") && !object.has("num_query_groups"))
    config.num_key_value_heads = config.num_attention_heads;
  read_time_step_limit(config, object);
}

void write_model_keys(const NemotronHConfig& config, Json& to) {
  write_keys<C>(config, to, first_keys);
  write_sizes(config, to);
  write_keys<C>(config, to, last_keys);
  // Without a clamp, which is the default everywhere, the key is left out.
  if (config.time_step_limit_low != 0 || !std::isinf(config.time_step_limit_high))
    to[limit_names[0]] = time_step_limit(config);
}

bool is_block_key(std::string_view name) {
  const auto named = [&](const auto& names) {
    return std::ranges::any_of(names, [&](const char* one) { return one && one == name; });
  };
  return named(limit_names) || std::ranges::any_of(block_keys, named, &Key<B>::names);
}

void read_block_keys(BlockConfig& config, const JsonView& object) {
  read_keys<B>(config, object, block_keys);
  read_time_step_limit(config, object);
}

Json differing_block_keys(const BlockConfig& common, const BlockConfig& own) {
  Json all, differing = Json::object();
  write_sizes(common, all);
  Json sizes;
  write_sizes(own, sizes);
  for (const auto& [key, value] : sizes.items())
    if (all.at(key) != value) differing[key] = value;
  if (own.time_step_limit_low != common.time_step_limit_low ||
      own.time_step_limit_high != common.time_step_limit_high)
    differing[limit_names[0]] = time_step_limit(own);
  return differing;
}

}  // namespace nemocube
