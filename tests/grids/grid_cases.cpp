#include "tests/grids/grid_cases.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/hf/hf_config.h"
#include "model/test_configs.h"
#include "parallel/schedule/stages.h"
#include "parallel/tensor_parallel/cuts.h"

namespace nemocube::testing {
namespace {

using enum ZeroLevel;
using enum DispatcherKind;
using enum ContextAttention;
using enum ScheduleKind;

// clang-format off
const std::vector<GridCase> cases{
    // 2 ranks
    {.grid = {.tp = 2}, .always = true},
    {.grid = {.tp = 2}, .sequence_parallel = true, .checkpointing = true, .always = true, .cuda = true},
    {.grid = {.tp = 2, .ep = 2}, .dispatcher = allgather, .whole_head = true},
    {.grid = {.tp = 2, .expt_tp = 2}, .sequence_parallel = true, .dispatcher = allgather, .whole_head = true},
    {.grid = {.tp = 2, .expt_tp = 2}, .packed = false},
    {.grid = {.cp = 2}, .always = true, .cuda = true},
    {.grid = {.cp = 2, .ep = 2}, .level = none, .attention = ContextAttention::all_gather, .packed = false, .always = true},
    {.grid = {.pp = 2}, .always = true},
    {.grid = {.pp = 2}, .schedule = gpipe, .packed = false, .checkpointing = true},
    {.grid = {.pp = 2}, .schedule = interleaved_1f1b, .chunks = 2},
    {.grid = {.pp = 2}, .schedule = interleaved_1f1b, .chunks = 4, .checkpointing = true},
    {.grid = {.pp = 2}, .schedule = interleaved_zero_bubble, .chunks = 2, .always = true},
    {.grid = {.pp = 2}, .schedule = zbv, .chunks = 2, .packed = false, .checkpointing = true, .always = true, .cuda = true},
    {.grid = {.dp_shard = 2, .ep = 2}, .level = parameters, .always = true, .cuda = true},
    {.grid = {.dp_shard = 2, .ep = 2}, .level = none, .dispatcher = allgather, .always = true, .cuda = true},
    {.grid = {.dp_shard = 2, .expt_tp = 2}, .level = optimizer},
    // 4 ranks
    {.grid = {.tp = 4}, .sequence_parallel = true, .always = true},
    {.grid = {.tp = 4, .ep = 4}},
    {.grid = {.tp = 4, .expt_tp = 2, .ep = 2}, .sequence_parallel = true, .checkpointing = true},
    {.grid = {.tp = 2, .cp = 2}, .sequence_parallel = true, .always = true},
    {.grid = {.tp = 2, .cp = 2, .ep = 2}, .attention = ContextAttention::all_gather, .checkpointing = true},
    {.grid = {.cp = 4}, .packed = false},
    {.grid = {.cp = 4, .ep = 2}, .level = gradients, .attention = ContextAttention::all_gather},
    {.grid = {.tp = 2, .pp = 2}, .sequence_parallel = true, .schedule = one_f_one_b, .always = true},
    {.grid = {.tp = 2, .pp = 2, .ep = 2}, .schedule = zbv, .chunks = 2},
    {.grid = {.cp = 2, .pp = 2}, .schedule = interleaved_1f1b, .chunks = 2},
    {.grid = {.pp = 4}, .schedule = one_f_one_b, .always = true},
    {.grid = {.pp = 4}, .schedule = interleaved_1f1b, .chunks = 2, .checkpointing = true},
    {.grid = {.pp = 4}, .schedule = interleaved_zero_bubble, .chunks = 2},
    {.grid = {.pp = 4}, .schedule = zbv, .chunks = 2, .packed = false},
    {.grid = {.pp = 4}, .schedule = gpipe},
    {.grid = {.dp_shard = 2, .pp = 2, .ep = 2}, .schedule = interleaved_1f1b, .chunks = 2, .always = true, .cuda = true},
    {.grid = {.dp_shard = 2, .pp = 2, .ep = 2}, .level = gradients, .schedule = zbv, .chunks = 2, .checkpointing = true},
    {.grid = {.dp_shard = 4, .ep = 4}, .checkpointing = true, .always = true},
    {.grid = {.dp_shard = 4, .ep = 2}, .level = optimizer, .dispatcher = allgather},
    {.grid = {.dp_shard = 2, .dp_replicate = 2, .ep = 2}, .level = parameters},
    {.grid = {.dp_shard = 4, .expt_tp = 2, .ep = 2}, .level = none},
    {.grid = {.tp = 2, .dp_shard = 2, .ep = 2}, .sequence_parallel = true, .always = true, .cuda = true},
    {.grid = {.tp = 2, .dp_shard = 2, .expt_tp = 2, .ep = 2}, .level = gradients, .dispatcher = allgather},
    {.grid = {.tp = 2, .dp_shard = 2}, .level = optimizer, .packed = false, .whole_head = true},
    {.grid = {.cp = 2, .dp_shard = 2, .ep = 4}, .checkpointing = true},
    // 8 ranks
    {.grid = {.tp = 2, .cp = 2, .dp_shard = 2, .ep = 4}, .sequence_parallel = true},
    {.grid = {.tp = 2, .dp_shard = 2, .pp = 2, .ep = 2}, .sequence_parallel = true, .schedule = interleaved_1f1b, .chunks = 2, .always = true},
    {.grid = {.tp = 2, .cp = 2, .pp = 2, .ep = 2}, .schedule = zbv, .chunks = 2, .checkpointing = true, .always = true},
    {.grid = {.dp_shard = 2, .pp = 4, .ep = 2}, .schedule = interleaved_1f1b, .chunks = 2, .checkpointing = true, .always = true},
    {.grid = {.cp = 4, .pp = 2, .ep = 4}, .sequence_parallel = false, .schedule = interleaved_zero_bubble, .chunks = 2},
    {.grid = {.tp = 4, .dp_shard = 2, .expt_tp = 2, .ep = 2}, .sequence_parallel = true, .level = optimizer},
    {.grid = {.dp_shard = 2, .dp_replicate = 2, .pp = 2, .ep = 2}, .schedule = one_f_one_b},
    {.grid = {.tp = 4, .cp = 2, .expt_tp = 4}, .sequence_parallel = true, .dispatcher = allgather},
    // 16 ranks
    {.grid = {.tp = 2, .cp = 2, .dp_shard = 2, .pp = 2, .expt_tp = 2, .ep = 2}, .sequence_parallel = true, .schedule = interleaved_1f1b, .chunks = 2},
    {.grid = {.tp = 4, .pp = 4, .ep = 2}, .sequence_parallel = true, .schedule = zbv, .chunks = 2},
    {.grid = {.dp_shard = 4, .pp = 4, .ep = 4}, .level = none, .schedule = interleaved_zero_bubble, .chunks = 2},
    {.grid = {.tp = 2, .cp = 4, .dp_shard = 2, .ep = 4}, .level = gradients, .checkpointing = true},
};
// clang-format on

}  // namespace

std::string name_of(const GridCase& c) {
  constexpr const char* levels[] = {"ddp", "ZeRO-1", "ZeRO-2", "ZeRO-3"};
  constexpr const char* dispatchers[] = {"local", "allgather", "alltoall"};
  std::string name = cat(to_string(c.grid), ", ", levels[static_cast<int>(c.level)], ", ",
                         dispatchers[static_cast<int>(c.dispatcher)]);
  if (c.grid.dp_replicate > 1) name += cat(", dp_replicate ", c.grid.dp_replicate);
  if (c.sequence_parallel) name += ", sequence parallel";
  if (c.grid.cp > 1) name += c.attention == ring ? ", ring" : ", all-gathered keys";
  if (c.grid.pp > 1) name += cat(", ", name_of(c.schedule), " of ", c.chunks, " chunks");
  name += c.packed ? ", packed" : "";
  name += c.checkpointing ? ", checkpointing" : "";
  name += c.whole_head ? ", whole head" : "";
  return name;
}

ModelConfig grid_model() {
  ModelConfig c = with_experts({"ME*-E*M-", 16, 4, 2, 12, 8, 2, 4, 4}, {8, 3, 8, 8});
  c.vocab_size = 23;
  c.attention.head_dim = 4;
  c.mamba.n_groups = 2;
  c.moe.routed_scaling_factor = 1.5;
  c.mamba.in_proj_bias = c.mamba.out_proj_bias = c.mlp.bias = c.moe.bias = true;
  c.moe.latent_size = 6;
  return c;
}

ModelConfig pruned_grid_model() {
  ModelConfig c = grid_model();
  BlockConfig &few = own_config(c, 1), &many = own_config(c, 4), &attention = own_config(c, 5),
              &mamba = own_config(c, 6), &mlp = own_config(c, 7);
  few.moe.n_routed_experts = 4, few.moe.num_experts_per_tok = 2, few.moe.intermediate_size = 4;
  few.moe.shared_expert_intermediate_size = 4, few.moe.latent_size = 0;
  many.moe.n_routed_experts = 12, many.moe.num_experts_per_tok = 4, many.moe.intermediate_size = 12;
  many.moe.n_group = 2, many.moe.norm_topk_prob = false;
  attention.attention.num_attention_heads = 8, attention.attention.head_dim = 2;
  mamba.mamba.num_heads = 32, mamba.mamba.head_dim = 1, mamba.mamba.ssm_state_size = 3,
  mamba.mamba.conv_kernel = 2;
  mamba.mamba.chunk_size = 3;
  mlp.mlp.intermediate_size = 20, mlp.mlp.bias = mlp.moe.bias = false;
  return c;
}

namespace {
FamilyModel family_model(const char* model_type, const Json& changes, const char* variant = "") {
  Json config = {{"model_type", model_type}, {"vocab_size", 23},       {"hidden_size", 16},
                 {"intermediate_size", 12},  {"num_hidden_layers", 4}, {"num_attention_heads", 4},
                 {"num_key_value_heads", 2}, {"head_dim", 4},          {"rope_theta", 100},
                 {"bos_token_id", 1},        {"eos_token_id", 2},      {"pad_token_id", nullptr}};
  config.update(changes);
  return {cat(model_type, variant), parse_hf_config(JsonView(config, "config.json"))};
}

FamilyModel with_diffusion(FamilyModel model, const DiffusionTraining& diffusion) {
  model.diffusion = diffusion;
  return model;
}
}  // namespace

const std::vector<FamilyModel>& family_models() {
  const Json heads = {{"n_heads_in_group", 2}}, wide = {{"ffn_mult", 1}},
             linear = {{"replace_with_linear", true}}, absent = {{"no_op", true}};
  const char *const sliding = "sliding_attention", *const full = "full_attention";
  // Layers of three blocks, as many as there are stages at most. B and C are of one group, or of two, each of
  // which spans two of four tp ranks.
  const Json falcon = {{"num_hidden_layers", 8},
                       {"mamba_d_ssm", 16},
                       {"mamba_n_heads", 8},
                       {"mamba_d_state", 3},
                       {"mamba_chunk_size", 4},
                       {"embedding_multiplier", 1.5},
                       {"lm_head_multiplier", 0.75},
                       {"key_multiplier", 1.25},
                       {"attention_in_multiplier", 0.5},
                       {"attention_out_multiplier", 0.625},
                       {"ssm_in_multiplier", 0.75},
                       {"ssm_out_multiplier", 1.25},
                       {"mlp_multipliers", {0.875, 1.125}},
                       {"ssm_multipliers", {0.5, 0.75, 1.125, 1.25, 1.5}}};
  Json falcon_with_norm = falcon;
  falcon_with_norm.update({{"mamba_rms_norm", true},
                           {"mamba_norm_before_gate", true},
                           {"mamba_n_groups", 2},
                           {"attention_bias", true},
                           {"mlp_bias", true},
                           {"mamba_proj_bias", true},
                           {"projectors_bias", true}});
  // Layers of both types read keys and values of layers that lie on other stages. Heads that see all keys
  // may make their values of their keys.
  const Json gemma4 = {{"num_hidden_layers", 4},
                       {"rope_theta", nullptr},
                       {"global_head_dim", 8},
                       {"sliding_window", 3},
                       {"layer_types", {sliding, full, sliding, full}},
                       {"num_kv_shared_layers", 2},
                       {"use_double_wide_mlp", true},
                       {"attention_bias", true},
                       {"hidden_size_per_layer_input", 6},
                       {"vocab_size_per_layer_input", 23}};
  Json gemma4_with_experts = gemma4;
  gemma4_with_experts.update({{"attention_bias", false},
                              {"attention_k_eq_v", true},
                              {"num_global_key_value_heads", 2},
                              {"enable_moe_block", true},
                              {"num_experts", 8},
                              {"top_k_experts", 2},
                              {"moe_intermediate_size", 4},
                              {"final_logit_softcapping", 4}});
  const Json denoising = {
      {"mask_token_id", 22},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 4}}}};
  static const std::vector<FamilyModel> models{
      family_model("llama", {{"attention_bias", true},
                             {"mlp_bias", true},
                             {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}),
      family_model("mistral", {{"sliding_window", 3}}),
      family_model("ministral3", {{"rope_scaling",
                                   {{"type", "yarn"},
                                    {"factor", 4},
                                    {"original_max_position_embeddings", 4},
                                    {"llama_4_scaling_beta", 0.3}}}}),
      family_model("qwen2", {{"use_sliding_window", true}, {"sliding_window", 4}, {"max_window_layers", 2}}),
      family_model("qwen3", {{"attention_bias", true}}),
      family_model("qwen3_moe", {{"num_experts", 8},
                                 {"num_experts_per_tok", 2},
                                 {"moe_intermediate_size", 4},
                                 {"norm_topk_prob", true},
                                 {"mlp_only_layers", {1}}}),
      family_model("qwen3_5_text", {{"full_attention_interval", 2},
                                    {"partial_rotary_factor", 0.5},
                                    {"linear_num_key_heads", 2},
                                    {"linear_num_value_heads", 16},
                                    {"linear_key_head_dim", 3},
                                    {"linear_value_head_dim", 2},
                                    {"linear_conv_kernel_dim", 3}}),
      family_model("qwen3_5_moe_text", {{"full_attention_interval", 4},
                                        {"partial_rotary_factor", 0.5},
                                        {"linear_num_key_heads", 4},
                                        {"linear_num_value_heads", 16},
                                        {"linear_key_head_dim", 2},
                                        {"linear_value_head_dim", 1},
                                        {"num_experts", 8},
                                        {"num_experts_per_tok", 2},
                                        {"moe_intermediate_size", 4},
                                        {"shared_expert_intermediate_size", 8}}),
      // Eight blocks in five layers.
      family_model("nemotron-nas", {{"num_hidden_layers", 5},
                                    {"block_configs",
                                     {{{"attention", heads}, {"ffn", wide}},
                                      {{"attention", linear}, {"ffn", wide}},
                                      {{"attention", heads}, {"ffn", linear}},
                                      {{"attention", heads}, {"ffn", absent}},
                                      {{"attention", absent}, {"ffn", wide}}}}}),
      family_model("gemma3_text", {{"sliding_window", 3},
                                   {"sliding_window_pattern", 2},
                                   {"rope_local_base_freq", 20},
                                   {"query_pre_attn_scalar", 6},
                                   {"final_logit_softcapping", 4}}),
      family_model("gemma4_text", gemma4_with_experts, ", with experts"),
      family_model("gemma4_text", gemma4),
      // As many layers as there are stages at most, because no stage may begin with an MLP.
      family_model("phi", {{"num_hidden_layers", 8}, {"qk_layernorm", true}, {"partial_rotary_factor", 0.5}}),
      family_model("baichuan", {{"z_loss_weight", 0.05}}),
      family_model("falcon_h1", falcon),
      family_model("falcon_h1", falcon_with_norm, ", norm before the gate"),
      family_model("nemotron_labs_diffusion", denoising),
      with_diffusion(family_model("nemotron_labs_diffusion", denoising, ", bidirectional"),
                     {Paradigm::bidirectional, 0}),
      with_diffusion(family_model("nemotron_labs_diffusion", denoising, ", block diffusion"),
                     {Paradigm::block_diff, 3}),
  };
  return models;
}

bool FamilyModel::fits(const GridCase& grid) const {
  return grid.grid.cp == 1 || diffusion.paradigm == Paradigm::autoregressive;
}

std::vector<FamilyModel> family_models_of(const GridCase& grid, std::size_t number, bool all) {
  std::vector<FamilyModel> fitting;
  std::ranges::copy_if(family_models(), std::back_inserter(fitting),
                       [&](const FamilyModel& model) { return model.fits(grid); });
  if (const char* wish = std::getenv("NEMOCUBE_FAMILY"); wish && *wish) {
    const auto wished = std::ranges::find(family_models(), std::string_view(wish), &FamilyModel::name);
    require(wished != family_models().end(), "NEMOCUBE_FAMILY: no family ", wish,
            " among those of the grids");
    return wished->fits(grid) ? std::vector{*wished} : std::vector<FamilyModel>();
  }
  if (all) return fitting;
  return {fitting[number % fitting.size()]};
}

std::vector<std::int64_t> lengths_for(const DiffusionTraining& diffusion,
                                      const std::vector<std::int64_t>& lengths) {
  if (diffusion.paradigm != Paradigm::block_diff) return lengths;
  std::vector<std::int64_t> twice;
  for (const std::int64_t length : lengths) twice.insert(twice.end(), 2, length);
  return twice;
}

GridCase without_experts(GridCase c) {
  c.grid.ep = c.grid.expt_tp = 1;
  c.dispatcher = DispatcherKind::local;
  return c;
}

void share_norms(ModelConfig& config, std::int64_t stages) {
  if (stages > 4) return;
  for (const std::int64_t block : {1, 5, 7}) own_config(config, block).residual = Residual::shared_norm;
  if (stages <= 2) own_config(config, 2).residual = Residual::shared_norm;
}

LoraAdapters adapters_of_all(const ModelSetup& config, DropoutPosition position) {
  LoraAdapters adapters;
  adapters.dropout = 0.25;
  adapters.dropout_position = position;
  adapters.dropout_seed = 5;
  for (const TensorSpec& spec : tensor_specs(config))
    if (spec.linear) adapters.modules.emplace(spec.id.module(), LoraModule{spec.experts ? 2 : 3, 8, false});
  return adapters;
}

ParallelPlan plan_of(const GridCase& c, const ModelSetup& config) {
  ParallelPlan plan;
  plan.grid = c.grid;
  plan.sequence_parallel = c.sequence_parallel;
  plan.dispatcher = c.dispatcher;
  plan.context_attention = c.attention;
  plan.data.level = c.level;
  plan.data.reshard_after_forward = c.grid.pp == 1;
  plan.data.reshard_experts_after_forward = c.checkpointing && c.grid.pp == 1;
  plan.data.reduce_last_only = c.level < ZeroLevel::gradients || c.grid.pp > 1 || c.checkpointing;
  if (c.whole_head)
    plan.tensor_rules.push_back({config.config.text(config.config.head_module()), "replicated"});
  const HeadReplicas replicas =
      head_replicas(config, TensorParallelPlan(config, c.sequence_parallel, plan.tensor_rules), c.grid.tp);
  plan.grid.kv_replicas = replicas.kv;
  plan.grid.state_replicas = replicas.state;
  if (c.grid.pp == 1) return plan;
  const std::int64_t stages = c.grid.pp * c.chunks;
  plan.pipeline.kind = c.schedule;
  plan.pipeline.stages = even_stages(config.config.num_layers(), stages);
  plan.pipeline.rank_of_stage.resize(static_cast<std::size_t>(stages));
  for (std::int64_t rank = 0; rank < c.grid.pp; ++rank)
    for (const std::int64_t s : stages_of_rank(placement_of(c.schedule), rank, c.grid.pp, stages))
      plan.pipeline.rank_of_stage[static_cast<std::size_t>(s)] = rank;
  return plan;
}

std::vector<GridCase> grid_cases(std::int64_t ranks, const std::string& wish) {
  const auto wished = [&](const GridCase& c) {
    return wish.empty()     ? c.always
           : wish == "cuda" ? c.cuda
                            : wish == "all" || name_of(c).find(wish) != std::string::npos;
  };
  std::vector<GridCase> chosen;
  for (const GridCase& c : cases)
    if (c.grid.ranks() == ranks && wished(c)) chosen.push_back(c);
  return chosen;
}

}  // namespace nemocube::testing
