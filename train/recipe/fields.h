#pragma once
#include <cmath>
#include <limits>

#include "train/recipe/names.h"
#include "train/recipe/reader.h"
#include "train/recipe/recipe.h"

/// The keys of every section: read by Reader, written by Writer, listed by KeyList.
namespace nemocube::recipe {

/// Keys of one type that change nothing in this build.
template <class T, class Io>
void without_effect(Io& io, std::initializer_list<const char*> keys, Range range = any) {
  for (const char* key : keys) {
    std::optional<T> unused;
    io.hidden(key, unused, range);
  }
  io.ignored(keys);
}

template <class Io>
void fields(Io& io, StepSchedulerSection& s) {
  io.known_class("_target_", {"StepScheduler"});
  io.field("global_batch_size", s.global_batch_size, token_count);
  io.field("local_batch_size", s.local_batch_size, token_count);
  io.field("num_epochs", s.num_epochs, positive);
  io.field("max_steps", s.max_steps, positive);
  io.field("ckpt_every_steps", s.ckpt_every_steps, positive);
  io.field("save_checkpoint_every_epoch", s.save_checkpoint_every_epoch);
  io.field("val_every_steps", s.val_every_steps, positive);
  io.signals("preemption_signal", s.preemption_signals);
  io.field("max_nonfinite_steps", s.max_nonfinite_steps, nonnegative);
  without_effect<std::int64_t>(io, {"log_remote_every_steps", "loss_average_window_steps", "gc_every_steps"},
                               nonnegative);
}

template <class Io>
void fields(Io& io, MoeSection& s) {
  io.field("aux_loss_coeff", s.aux_loss_coeff, nonnegative);
  io.field("seq_aux_loss_coeff", s.seq_aux_loss_coeff, nonnegative);
  io.field("global_aux_loss_coeff", s.global_aux_loss_coeff, nonnegative);
  io.field("z_loss_coeff", s.z_loss_coeff, nonnegative);
  io.field("expert_bias_update_rate", s.expert_bias_update_rate, nonnegative);
}

template <class Io>
void fields(Io& io, ModelSection& s) {
  const bool class_given = io.has("_target_");
  io.field("_target_", s.source);
  const bool direct = io.has("pretrained_model_name_or_path");
  io.field("pretrained_model_name_or_path", s.path);
  std::optional<std::string> config;
  io.path_or_section("config", config);
  if (config && direct)
    io.refuse("config", "pretrained_model_name_or_path is given as well; want one of them");
  if (config && class_given && s.source == ModelSource::pretrained)
    io.refuse("config", "from_pretrained wants pretrained_model_name_or_path instead");
  if (config) {
    s.source = ModelSource::config;
    s.path = *config;
  }
  io.field("torch_dtype", s.dtype);
  std::optional<Initialisation> law;
  if (s.source == ModelSource::config) law = s.initialisation;
  io.field("initialisation", law);
  if (law && s.source == ModelSource::pretrained)
    io.refuse("initialisation", "from_pretrained reads its weights; want from_config");
  s.initialisation = law.value_or(Initialisation::hf);
  io.section("moe", [&](auto& sub) { fields(sub, s.moe); });
  io.only("num_nextn_predict_layers", {"0"}, "multi-token prediction");
  io.only("quantization_config", {}, "quantisation");
  io.section("backend", [](auto& sub) {
    sub.ignored({"_target_", "attn", "linear", "rms_norm", "experts", "dispatcher", "dispatcher_num_sms",
                 "gate_precision", "rope", "cuda_graph"});
    without_effect<bool>(
        sub, {"enable_hf_state_dict_adapter", "enable_fsdp_optimizations", "enable_deepep", "rope_fusion",
              "compile_attn", "dispatcher_share_token_dispatcher", "dispatcher_async_dispatch"});
    sub.only("fake_balanced_gate", {"false"}, "routing that does not look at the tokens");
    sub.only("fake_gate_noise", {"0", "0.0"}, "routing that does not look at the tokens");
    sub.only("te_fp8", {}, "FP8");
  });
  without_effect<bool>(io, {"trust_remote_code", "force_hf", "output_hidden_states", "use_liger_kernel",
                            "use_sdpa_patching", "load_base_model", "mtp_use_repeated_layer"});
  without_effect<double>(io, {"mtp_loss_scaling_factor"}, nonnegative);
  io.ignored({"attn_implementation"});
}

template <class Io>
void fields(Io& io, CheckpointSection& s) {
  io.field("enabled", s.enabled);
  io.field("checkpoint_dir", s.checkpoint_dir);
  if (s.checkpoint_dir.empty()) io.refuse("checkpoint_dir", "is empty; want a folder");
  io.field("restore_from", s.restore_from);
  io.field("max_recent_checkpoints", s.max_recent_checkpoints, positive);
  io.field("best_metric_key", s.best_metric_key);
  io.only("save_consolidated", {"final", "every", "true", "false"}, "another time of consolidation");
  without_effect<bool>(io, {"is_async", "wait_for_staging", "cpu_offload", "single_rank_consolidation",
                            "v4_compatible", "diffusers_compatible", "allow_legacy_pickle_restore",
                            "dequantize_base_checkpoint", "load_base_model"});
  without_effect<double>(io, {"consolidation_timeout_minutes"}, positive);
  io.ignored({"_target_", "model_save_format", "save_consolidated", "staging_dir",
              "skip_task_head_prefixes_for_base_model", "model_cache_dir", "model_repo_id"});
}

template <class Io>
void fields(Io& io, DistributedSection& s) {
  io.known_class("_target_", {"FSDP2Manager", "MegatronFSDPManager", "DDPManager"});
  io.field("dp_size", s.dp_size, positive);
  io.field("dp_replicate_size", s.dp_replicate_size, positive);
  io.field("tp_size", s.tp_size, positive);
  io.field("pp_size", s.pp_size, positive);
  io.field("cp_size", s.cp_size, positive);
  io.field("ep_size", s.ep_size, positive);
  auto recompute = s.activation_checkpointing ? Recomputation::on : Recomputation::off;
  io.field("activation_checkpointing", recompute);
  s.activation_checkpointing = recompute == Recomputation::on;
  io.only("strategy", {"fsdp2", "megatron_fsdp", "ddp"}, "another strategy");
  without_effect<bool>(io, {"sequence_parallel", "defer_fsdp_grad_sync", "reshard_after_forward",
                            "enable_async_tensor_parallel", "enable_compile", "enable_fsdp2_prefetch"});
  without_effect<std::int64_t>(
      io, {"world_size", "fsdp2_backward_prefetch_depth", "fsdp2_forward_prefetch_depth"}, nonnegative);
  io.section("pipeline", [](auto& sub) {
    without_effect<std::int64_t>(
        sub, {"pp_microbatch_size", "pp_batch_size", "pp_seq_len", "layers_per_stage"}, positive);
    without_effect<bool>(sub, {"scale_grads_in_schedule", "patch_inner_model", "patch_causal_lm_model",
                               "patch_stage_backward_maybe_with_nosync"});
    sub.ignored({"_target_", "pp_schedule", "pp_schedule_csv", "round_virtual_stages_to_pp_multiple",
                 "module_fqns_per_model_part", "dtype"});
  });
  io.section("moe", [](auto& sub) {
    without_effect<bool>(sub, {"ignore_router_for_ac", "reshard_after_forward", "wrap_outer_model"});
    sub.ignored({"_target_", "lm_head_precision", "mp_policy"});
  });
  io.ignored({"strategy", "mp_policy", "offload_policy", "autocast_dtype", "zero_dp_strategy", "backend"});
}

template <class Io>
void fields(Io& io, LossSection& s) {
  io.field("_target_", s.kind);
  io.only("ignore_index", {"-100"}, "another label that is ignored");
  if (s.kind == LossKind::chunked) io.field("chunk_len", s.chunk_len, positive);
  io.only("reduction", {"sum"}, "another reduction of the loss than the sum divided by the number of labels");
  io.only("logit_softcapping", {"0"}, "soft-capping of logits");
  without_effect<bool>(io, {"fp32_upcast", "compile"});
  io.ignored({"tp_group"});
}

template <class Io>
void fields(Io& io, DatasetSection& s) {
  if (!io.has("_target_")) io.refuse("_target_", "is missing: want squad, messages, mock or tokens");
  io.field("_target_", s.kind);
  const bool text = s.kind == DatasetKind::squad || s.kind == DatasetKind::messages;
  if (s.kind == DatasetKind::squad) {
    io.field("dataset_name", s.dataset_name);
    io.field("path", s.path);
    io.field("answer_start", s.answer_start);
    io.ignored({"fp8"});
  }
  if (s.kind == DatasetKind::messages) {
    io.field(io.either("path", "path_or_dataset_id"), s.path);
    io.field("mask_history", s.mask_history);
    io.field("mask_reasoning_content", s.mask_reasoning_content);
    io.field("skip_invalid_samples", s.skip_invalid_samples);
    io.field("shuffle_seed", s.shuffle_seed, nonnegative);
    io.only("unshifted", {"false"}, "an unshifted row");
    io.only("start_of_turn_token", {}, "a mask by start-of-turn token");
    io.ignored({"name"});
  }
  if (s.kind == DatasetKind::tokens) io.field("path", s.path);
  if (s.kind == DatasetKind::mock) {
    io.field("vocab_size", s.vocab_size, positive);
    io.field("num_samples", s.num_samples, positive);
    io.field(io.either("seq_length", "seq_len"), s.seq_length, token_count);
    io.ignored({"batch_size"});
  } else {
    io.field("limit_dataset_samples", s.limit_dataset_samples, positive);
  }
  if (text) {
    io.field("split", s.split);
    io.field("seq_length", s.seq_length, token_count);
    io.path_or_section("tokenizer", s.tokenizer);
    io.field("padding", s.padding);
    std::optional<Cut> truncation = s.truncation ? Cut::on : Cut::off;
    io.field("truncation", truncation);
    s.truncation = truncation == Cut::on;
    io.field("truncation_side", s.truncation_side);
    io.field("append_eos", s.append_eos);
    io.field("chat_template", s.chat_template);
    if (s.padding == Padding::max_length && !s.seq_length)
      io.refuse("padding", "max_length needs seq_length, which is absent");
  }
}

template <class Io>
void fields(Io& io, PackedSequenceSection& s) {
  io.field("packed_sequence_size", s.packed_sequence_size, nonnegative_token_count);
  io.field("packing_strategy", s.packing_strategy);
  io.field("max_packs", s.max_packs, positive);
  io.field("drop_long_samples", s.drop_long_samples);
  io.only("prepacked", {"false"}, "reading packs made elsewhere");
  without_effect<std::int64_t>(io, {"num_proc"}, positive);
  without_effect<bool>(io, {"split_across_pack"});
}

template <class Io>
void fields(Io& io, DataloaderSection& s) {
  io.known_class("_target_", {"StatefulDataLoader", "DataLoader"});
  io.known_class("collate_fn", {"default_collater", "packed_sequence_thd_collater", "neat_packed_collater",
                                "default_collate"});
  io.field("shuffle", s.shuffle);
  io.field("drop_last", s.drop_last);
  io.field("batch_size", s.batch_size, positive);
  io.only("group_by_length", {"false"}, "grouping rows by length");
  without_effect<std::int64_t>(io, {"num_workers", "prefetch_factor", "shuffle_buffer_size"}, nonnegative);
  without_effect<bool>(io, {"pin_memory", "persistent_workers"});
  io.ignored({"dataloader_type"});
}

template <class Io>
void fields(Io& io, ParamGroupOverride& s) {
  io.field("pattern", s.pattern);
  io.field("lr_mult", s.lr_mult, nonnegative);
  io.field("wd_mult", s.wd_mult, nonnegative);
  if (s.pattern.empty()) io.refuse("pattern", "want a regular expression for parameter names, found none");
}

template <class Io>
void fields(Io& io, OptimizerSection& s) {
  io.field("_target_", s.kind);
  io.field("lr", s.lr, nonnegative);
  if (s.kind == OptimizerKind::sgd) {
    if (!io.has("weight_decay")) s.weight_decay = 0;
    io.field("momentum", s.momentum, below_one);
    io.field("nesterov", s.nesterov);
    if (s.nesterov && s.momentum == 0) io.refuse("nesterov", "needs a momentum above 0");
    io.only("dampening", {"0"}, "dampening");
  } else {
    io.field("betas", s.betas, below_one);
    io.field("eps", s.eps, nonnegative);
    bool decoupled = s.kind == OptimizerKind::adamw;
    io.hidden("adam_w_mode", decoupled);
    s.kind = decoupled ? OptimizerKind::adamw : OptimizerKind::adam;
    io.only("amsgrad", {"false"}, "AMSGrad");
    io.only("bias_correction", {"true"}, "Adam without bias correction");
  }
  io.field("weight_decay", s.weight_decay, nonnegative);
  io.list("param_group_overrides", s.param_group_overrides, [](auto& sub, auto& item) { fields(sub, item); });
  io.field("no_weight_decay_on_1d", s.no_weight_decay_on_1d);
  io.only("maximize", {"false"}, "maximising the loss");
  without_effect<bool>(
      io, {"foreach", "fused", "capturable", "differentiable", "master_weights", "store_param_remainders"});
  io.ignored({"master_weight_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"});
}

template <class Io>
void fields(Io& io, LrSchedulerSection& s) {
  io.known_class("_target_", {"OptimizerParamScheduler"});
  io.field("lr_decay_style", s.lr_decay_style);
  io.field("lr_warmup_steps", s.lr_warmup_steps, nonnegative);
  io.field("lr_decay_steps", s.lr_decay_steps, positive);
  io.field("init_lr", s.init_lr, nonnegative);
  io.field("max_lr", s.max_lr, nonnegative);
  io.field("min_lr", s.min_lr, nonnegative);
  io.field("start_wd", s.start_wd, nonnegative);
  io.field("end_wd", s.end_wd, nonnegative);
  io.field("wd_incr_steps", s.wd_incr_steps, nonnegative);
  io.field("wd_incr_style", s.wd_incr_style);
  io.field("wsd_decay_steps", s.wsd_decay_steps, positive);
  io.field("lr_wsd_decay_style", s.lr_wsd_decay_style);
  io.field("unit", s.unit);
  // A checkpoint holds the position only, so both of these come out as "the recipe's values count".
  std::optional<bool> adopt, override_stored;
  io.hidden("use_checkpoint_opt_param_scheduler", adopt);
  io.hidden("override_opt_param_scheduler", override_stored);
  if (adopt == true && override_stored == true)
    io.refuse("override_opt_param_scheduler",
              "use_checkpoint_opt_param_scheduler is true as well; want one of them");
}

template <class Io>
void fields(Io& io, ClipSection& s) {
  std::optional<double> norm = s.max_norm;
  io.field("max_norm", norm, nonnegative_or_infinite);
  s.max_norm = norm.value_or(1);
  if (s.max_norm == 0) s.max_norm = std::numeric_limits<double>::infinity();
  io.ignored({"foreach"});
}

template <class Io>
void fields(Io& io, MfuSection& s) {
  io.field("peak_tflops", s.peak_tflops, positive);
  io.ignored({"device"});
}

template <class Io>
void fields(Io& io, EvaluationSection& s) {
  io.field("squad_metrics", s.squad_metrics);
  io.field("max_new_tokens", s.max_new_tokens, positive);
  io.field("limit_samples", s.limit_samples, positive);
  io.field("stop_at_newline", s.stop_at_newline);
  io.field("predictions_path", s.predictions_path);
}

template <class Io>
void fields(Io& io, Recipe& r) {
  const auto each = [](auto& sub, auto& section) { fields(sub, section); };
  const bool seed_given = io.has("seed");
  io.field("seed", r.seed, nonnegative);
  std::optional<std::int64_t> rng_seed;
  io.section("rng", [&](auto& sub) {
    sub.known_class("_target_", {"StatefulRNG"});
    sub.hidden("seed", rng_seed, nonnegative);
    sub.ignored({"ranked"});
  });
  if (rng_seed && seed_given && *rng_seed != r.seed)
    io.refuse("seed",
              cat("is ", r.seed, ", but rng.seed is ", *rng_seed, "; want one of them, or equal values"));
  r.seed = rng_seed.value_or(r.seed);
  io.field("deterministic", r.deterministic);
  if (!r.deterministic) io.ignored({"deterministic"});
  io.section("step_scheduler", [&](auto& sub) { fields(sub, r.step_scheduler); });
  io.optional_section("model", r.model, each);
  io.path_or_section("tokenizer", r.tokenizer);
  io.section("checkpoint", [&](auto& sub) { fields(sub, r.checkpoint); });
  io.section("distributed", [&](auto& sub) { fields(sub, r.distributed); });
  io.section("loss_fn", [&](auto& sub) { fields(sub, r.loss); });
  io.optional_section("dataset", r.dataset, each);
  io.suffixed_sections("validation_dataset", r.validation_datasets, each);
  for (auto& [name, section] : r.validation_datasets)
    section.key = name == "default" ? "validation_dataset" : "validation_dataset_" + name;
  io.section("packed_sequence", [&](auto& sub) { fields(sub, r.packed_sequence); });
  io.section("dataloader", [&](auto& sub) {
    if (r.dataset && r.dataset->kind == DatasetKind::tokens && !sub.has("shuffle"))
      r.dataloader.shuffle = false;
    fields(sub, r.dataloader);
  });
  io.section("validation_dataloader", [&](auto& sub) {
    // Validation takes every row, in order, whatever is asked for.
    fields(sub, r.validation_dataloader);
    if (r.validation_dataloader.shuffle) sub.ignored({"shuffle"});
    if (r.validation_dataloader.drop_last) sub.ignored({"drop_last"});
  });
  io.optional_section("optimizer", r.optimizer, each);
  io.optional_section("lr_scheduler", r.lr_scheduler, each);
  io.section("clip_grad_norm", [&](auto& sub) { fields(sub, r.clip_grad_norm); });
  io.word_map("kernels", r.kernels.by_op);
  io.section("benchmark", [](auto& sub) {
    without_effect<std::int64_t>(sub, {"warmup_steps", "nsys_start", "nsys_end", "num_nodes"});
    without_effect<double>(sub, {"peak_tflops"}, nonnegative);
    sub.ignored({"json_output_path", "nsys_ranks"});
  });
  io.section("mfu", [&](auto& sub) { fields(sub, r.mfu); });
  io.section("evaluation", [&](auto& sub) { fields(sub, r.evaluation); });
  io.section("dist_env", [](auto& sub) {
    sub.ignored_section("runtime_env");
    without_effect<double>(sub, {"timeout_minutes"}, positive);
    sub.only("backend", {"nccl", "gloo", "mpi", "cpu:gloo,cuda:nccl"}, "another backend");
    sub.ignored({"backend", "torch_nccl_use_comm_nonblocking", "pytorch_alloc_conf",
                 "nemotronh_ep_use_deepep_dispatch", "nemotronh_ep_require_deepep",
                 "nemotronh_ep_physical_partition", "nemotronh_ep_sync_inactive_experts",
                 "nemotronh_ep_expert_reshard_after_forward", "nemoautomodel_pp_skip_output_merge"});
  });
  io.only("peft", {}, "low-rank adaptation");
  io.only("fp8", {"false"}, "FP8 training");
  io.only("quantization", {"false"}, "quantisation");
  io.only("qat", {"false"}, "quantisation-aware training");
  io.only("neftune", {"false"}, "noise on embeddings");
  io.only("embedding_row_repair", {"false"}, "repair of embedding rows");
  io.section("compile", [](auto& sub) {
    without_effect<bool>(sub, {"enabled", "fullgraph", "dynamic"});
    without_effect<std::int64_t>(sub, {"dynamo_cache_size_limit"}, positive);
    sub.ignored({"_target_", "mode", "backend", "options"});
  });
  io.ignored({"recipe", "wandb", "mlflow", "comet", "moe_metrics", "ci", "nvtx", "autopipeline",
              "parallelizer", "prewarm", "sdpa_method", "tool_call_eval"});
}

}  // namespace nemocube::recipe
