#pragma once
#include "model/blocks/block_kinds.h"
#include "train/recipe/environment.h"
#include "train/recipe/field_kinds.h"

/// The keys with an effect of the sections that say how ranks share the work: part of fields.h.
namespace nemocube::recipe {

/// Small enough for products of several sizes.
inline constexpr Range rank_count{.low = 1, .high = 1048576, .null_is_default = true};
inline constexpr Range block_weight{.low = 0, .high = 10000};
/// At most a week.
inline constexpr Range wait_minutes{.low = 0, .high = 10080, .above_low = true, .null_is_default = true};

void fields(auto& io, Like<PrecisionSection> auto& s) {
  io.field("param_dtype", s.param_dtype, "dtype of the computation; want that of the weights");
  io.field("reduce_dtype", s.reduce_dtype,
           "dtype of the sums of gradients; want float32, for float64 weights float64");
}

void fields(auto& io, Like<BlockWeights> auto& s) {
  for (const BlockKind kind : block_kinds())
    io.field(kind->name, s.of(kind), cat("time of ", kind->title, " (own)").c_str(), block_weight);
  io.field("embeddings", s.embeddings, "time of the token embeddings (own)", block_weight);
  io.field("head", s.head, "time of final norm, head and loss (own)", block_weight);
}

void fields(auto& io, Like<PipelineSection> auto& s) {
  io.field("pp_schedule", s.pp_schedule,
           "gpipe, 1f1b, interleaved1f1b, interleavedzerobubble, zbv, or PyTorch's class for one of them",
           or_default);
  io.field("pp_schedule_csv", s.pp_schedule_csv,
           "file with the actions of each rank, instead of pp_schedule");
  io.field("pp_microbatch_size", s.pp_microbatch_size, "rows of a microbatch; divides local_batch_size",
           token_count);
  io.field("layers_per_stage", s.layers_per_stage,
           "blocks of a stage; null: one stage a rank for gpipe and 1f1b, else two", positive);
  io.field("round_virtual_stages_to_pp_multiple", s.round_virtual_stages_to_pp_multiple,
           "with layers_per_stage: which number of stages counts where it is no multiple of pp_size");
  io.field("module_fqns_per_model_part", s.module_fqns_per_model_part,
           "the modules of each stage by their names; null: made by the other keys");
  io.section("block_weights", s.block_weights);
}

void fields(auto& io, Like<MoeParallelSection> auto& s) {
  io.field("reshard_after_forward", s.reshard_after_forward,
           "free gathered weights of experts until their backward pass; null: as the other weights");
}

void fields(auto& io, Like<DistributedSection> auto& s) {
  io.template named_target<StrategyClass>("strategy", s.strategy,
                                          "what data-parallel ranks divide among them");
  io.field("dp_size", s.dp_size, "data-parallel ranks; null: those that the other sizes leave", rank_count);
  io.field("dp_replicate_size", s.dp_replicate_size,
           "fsdp2: groups of ranks that each hold the whole model (HSDP); null: 1", rank_count);
  io.field("tp_size", s.tp_size,
           "tensor-parallel ranks: each has some heads, channels and tokens of the "
           "vocabulary",
           rank_count);
  io.field("pp_size", s.pp_size,
           "pipeline-parallel ranks: each has some blocks; without a section pipeline its defaults hold",
           rank_count);
  io.field("cp_size", s.cp_size, "context-parallel ranks: each has a part of every sequence", rank_count);
  io.field("ep_size", s.ep_size,
           "expert-parallel ranks: each has some experts; divides tp_size * cp_size * dp", rank_count);
  io.field("expert_tp_size", s.expert_tp_size, "ranks that share the channels of an expert (own)",
           rank_count);
  io.field("sequence_parallel", s.sequence_parallel,
           "between tensor-parallel layers each rank keeps a part of every sequence");
  io.field("tp_plan", s.tp_plan,
           "how modules are cut that match a pattern, ahead of the family's own plan, or the name of that "
           "plan; null: no change");
  io.alias("tp_shard_plan", s.tp_plan, "distributed.tp_plan");
  io.field("tp_cross_entropy", s.tp_cross_entropy,
           "how tensor-parallel ranks compute the loss; te is fused, off gathers the logits (own)",
           or_default);
  io.field(
      "cp_comm_type", s.cp_comm_type,
      "how context-parallel ranks pass on keys and values: around a ring, or all at once (Megatron's key)",
      or_default);
  switch_field<Recomputation>(io, "activation_checkpointing", s.activation_checkpointing,
                              "compute activations again in the backward pass; full and selective are true");
  io.section("pipeline", s.pipeline);
  io.section("moe", s.moe);
  io.classes("fsdp2");
  io.field(
      "reshard_after_forward", s.reshard_after_forward,
      "free gathered weights of a block until its backward pass; never the last block's; null: true, false "
      "with a pipeline");
  io.field("defer_fsdp_grad_sync", s.defer_fsdp_grad_sync,
           "reduce gradients after the last microbatch of a step only");
  io.section("mp_policy", s.mp_policy);
  io.classes("megatron_fsdp");
  io.field("zero_dp_strategy", s.zero_dp_strategy,
           "what ranks divide: 0 nothing, 1 optimizer state, 2 gradients too, 3 weights too", or_default);
  io.alias("data_parallel_sharding_strategy", s.zero_dp_strategy, "distributed.zero_dp_strategy", or_default);
  io.field("overlap_grad_reduce", s.overlap_grad_reduce, "reduce gradients during the backward pass");
  io.field("overlap_param_gather", s.overlap_param_gather,
           "gather weights ahead of their use; must equal overlap_grad_reduce");
  io.classes("");
}

void fields(auto& io, Like<DistEnvSection> auto& s) {
  io.field("backend", s.backend,
           "how CUDA tensors travel: mpi and gloo mean MPI, the others NCCL where each rank has a device of "
           "its own");
  io.field("timeout_minutes", s.timeout_minutes, "the run ends when a rank waits longer for the others",
           wait_minutes);
  for (const NamedVariable& variable : named_variables)
    io.field(variable.key, s.*variable.member, variable.meaning);
  io.field("runtime_env", s.runtime_env,
           "environment variables by name, ahead of the keys above; null is no value of a variable");
}

}  // namespace nemocube::recipe
