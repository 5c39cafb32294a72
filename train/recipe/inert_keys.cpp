#include "train/recipe/inert_keys.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/quote.h"
#include "train/recipe/scalar.h"
#include "train/recipe/variables.h"
#include "train/recipe/words.h"

namespace nemocube::recipe {

struct Form {
  const char* name;  ///< for the documentation, in front of the values of a row
  void (*check)(const Place& at, const InertKeys& row);
  bool reported = true;     ///< whether a message lists the key as one without effect
  bool as_section = false;  ///< the same, of a section
};

namespace {

bool same_scalar(const std::string& a, const std::string& b) {
  const auto flag = parse_flag(a);
  const auto number = parse_real(a);
  return a == b || (flag && flag == parse_flag(b)) || (number && number == parse_real(b));
}

bool has_value_of_row(const Place& at, const InertKeys& row) {
  if (at.value.kind != Value::Kind::scalar) return false;
  const std::string text = resolve_scalar(at.value, at.where)->text;
  return std::ranges::any_of(words_of(row.values),
                             [&](const auto& value) { return same_scalar(text, value); });
}

/// A section with `enabled: false`: AutoModel ignores its other keys.
bool is_disabled(const Place& at) {
  const Value* enabled = at.value.find("enabled");
  if (!enabled || enabled->kind != Value::Kind::scalar) return false;
  const auto scalar = resolve_scalar(*enabled, at.where);
  return scalar && parse_flag(scalar->text) == false;
}

void check_only(const Place& at, const InertKeys& row) {
  const bool empty =
      at.value.kind != Value::Kind::scalar && at.value.items.empty() && at.value.entries.empty();
  if (empty || is_disabled(at) || has_value_of_row(at, row)) return;
  fail(at.where, ": ", row.meaning, " is not in this build; want ",
       row.values.empty() ? "null" : joined(words_of(row.values)), ", found ", found(at.value));
}

template <class T, const Range& range = any>
void check_as(const Place& at, const InertKeys&) {
  T unused{};
  read(at, unused, range);
}

constexpr Form flag{"true or false", check_as<bool>};
/// AutoModel's word for "off" is -1.
constexpr Range whole_or_off{.low = -1};
constexpr Form whole{"a nonnegative integer, or -1", check_as<std::int64_t, whole_or_off>};
constexpr Form count{"a positive integer", check_as<std::int64_t, positive>};
constexpr Form number{"a nonnegative number", check_as<double, nonnegative>};
constexpr Form above_zero{"a positive number", check_as<double, positive>};
constexpr Form choice{"one of ",
                      [](const Place& at, const InertKeys& row) { read_choice(at, words_of(row.values)); }};
constexpr Form class_name{
    "one of ",
    [](const Place& at, const InertKeys& row) { read_choice(at, words_of(row.values), "class or function"); },
    false};
/// Names a function, or is a section with the name and what the function gets. Rows have no padding here.
void check_collater(const Place& at, const InertKeys& row) {
  const auto read_name = [&](const Place& name) {
    read_choice(name, words_of(row.values), "class or function");
  };
  if (at.value.kind != Value::Kind::map) return read_name(at);
  const Value* target = at.value.find("_target_");
  require(target != nullptr, at.where, ": want _target_, one of ", joined(words_of(row.values)));
  for (const auto& [key, value] : at.value.entries) {
    const Place place{value, cat(at.path, ".", key), cat(at.where, ".", key)};
    if (key == "_target_")
      read_name(place);
    else if (key != "pad_seq_len_divisible")
      fail(place.where, ": unknown key; want _target_ or pad_seq_len_divisible");
    else if (!is_null(place))
      count.check(place, row);
  }
}
constexpr Form collater{"a section, or one of ", check_collater, false, true};
constexpr Form anything{"anything", [](const Place&, const InertKeys&) {}};
/// Accepts null, an empty list or section, and the values of the row, which describe what this build does
/// anyway.
constexpr Form only{"", check_only, false};

constexpr auto table = std::to_array<InertKeys>({
    {"step_scheduler", "_target_", class_name, "class of the scheduler", "StepScheduler"},
    {"step_scheduler", "log_remote_every_steps loss_average_window_steps", whole, "for experiment trackers"},
    {"step_scheduler", "gc_every_steps", whole, "Python's garbage collection"},
    {"model", "quantization_config", only, "quantisation"},
    {"model", "trust_remote_code force_hf output_hidden_states load_base_model", flag,
     "how transformers loads a model"},
    {"model", "use_liger_kernel use_sdpa_patching", flag, "kernels of PyTorch"},
    {"model", "attn_implementation", anything, "kernels of PyTorch"},
    {"model.backend",
     "_target_ attn linear rms_norm experts dispatcher_num_sms gate_precision rope "
     "cuda_graph",
     anything, "kernels of PyTorch"},
    {"model.backend",
     "enable_hf_state_dict_adapter enable_fsdp_optimizations rope_fusion "
     "compile_attn dispatcher_share_token_dispatcher dispatcher_async_dispatch",
     flag, "kernels of PyTorch"},
    {"model.backend", "fake_gate_noise", only, "noise in the balanced gate", "0"},
    {"model.backend", "te_fp8", only, "FP8"},
    // A section, or a path alone, that names a folder: tokenizer, dataset.tokenizer, model.config.
    {"tokenizer", "_target_ trust_remote_code torch_dtype attn_implementation", anything,
     "how transformers loads it"},
    {"tokenizer", "num_nextn_predict_layers", only, "multi-token prediction", "0"},
    {"tokenizer", "add_bos_token add_eos_token", only,
     "a first or last token that a recipe adds to every text", "false"},
    {"checkpoint", "save_consolidated", choice, "every checkpoint holds a whole model",
     "final every true false"},
    {"checkpoint",
     "wait_for_staging cpu_offload single_rank_consolidation "
     "diffusers_compatible allow_legacy_pickle_restore load_base_model",
     flag, "checkpoints of PyTorch"},
    {"checkpoint", "load_rng", flag,
     "random numbers follow from seeds and steps, and no checkpoint holds any"},
    {"checkpoint", "consolidation_timeout_minutes", above_zero, "checkpoints of PyTorch"},
    {"checkpoint",
     "_target_ model_save_format staging_dir skip_task_head_prefixes_for_base_model "
     "model_cache_dir model_repo_id",
     anything, "checkpoints of PyTorch"},
    {"distributed", "world_size", whole, "the launcher says how many ranks there are"},
    {"distributed", "backend", anything, "ranks exchange data over MPI"},
    {"distributed", "enable_async_tensor_parallel", flag, "overlap by PyTorch's compiler", {}, "fsdp2"},
    {"distributed", "enable_compile", flag, "PyTorch's compiler", {}, "fsdp2"},
    {"distributed", "enable_fsdp2_prefetch", flag, "the next block is always gathered ahead", {}, "fsdp2"},
    {"distributed",
     "fsdp2_backward_prefetch_depth fsdp2_forward_prefetch_depth",
     whole,
     "one block is gathered ahead",
     {},
     "fsdp2"},
    {"distributed", "offload_policy", anything, "everything is in the memory of the CPU", {}, "fsdp2"},
    {"distributed", "patch_is_packed_sequence", flag, "rows of a pack are always told apart", {}, "fsdp2"},
    {"distributed",
     "autocast_dtype",
     anything,
     "the dtype of the weights is that of the computation",
     {},
     "fsdp2"},
    {"distributed.mp_policy", "_target_", class_name, "class of the dtypes", "MixedPrecisionPolicy"},
    {"distributed.mp_policy", "output_dtype", anything, "outputs have the dtype of the weights"},
    {"distributed.mp_policy", "cast_forward_inputs", flag, "inputs are token ids"},
    {"distributed",
     "average_in_collective",
     flag,
     "losses are divided by the labels of all ranks, so gradients are sums and no rank averages them",
     {},
     "megatron_fsdp"},
    {"distributed",
     "grad_reduce_in_fp32",
     flag,
     "gradients are summed in f32, those of f64 weights in f64",
     {},
     "megatron_fsdp"},
    {"distributed",
     "calculate_per_token_loss",
     flag,
     "every label of the global batch counts alike",
     {},
     "megatron_fsdp"},
    {"distributed",
     "check_for_nan_in_grad report_nan_in_param_grad",
     flag,
     "a step whose gradients are not finite is always skipped",
     {},
     "megatron_fsdp"},
    {"distributed",
     "preserve_fp32_weights",
     flag,
     "bf16 weights always have f32 masters",
     {},
     "megatron_fsdp"},
    {"distributed",
     "megatron_fsdp_unit_modules nvfsdp_unit_modules",
     anything,
     "each block is one unit, the rest another",
     {},
     "megatron_fsdp"},
    {"distributed", "disable_bucketing", flag, "a unit is one bucket", {}, "megatron_fsdp"},
    {"distributed",
     "init_fsdp_with_meta_device init_nvfsdp_with_meta_device",
     flag,
     "a rank only ever allocates its part",
     {},
     "megatron_fsdp"},
    {"distributed",
     "fsdp_double_buffer nccl_ub keep_fp8_transpose_cache keep_fp8_transpose_cache_when_using_custom_fsdp",
     flag,
     "buffers of GPUs",
     {},
     "megatron_fsdp"},
    {"distributed",
     "dp_mesh_name cp_mesh_name tp_mesh_name",
     anything,
     "device mesh of PyTorch",
     {},
     "megatron_fsdp"},
    {"distributed.pipeline", "pp_batch_size", count, "step_scheduler.local_batch_size says it"},
    {"distributed.pipeline", "pp_seq_len", count, "stages tell each other the lengths of rows"},
    {"distributed.pipeline", "dtype", anything, "stages exchange activations in the dtype of the weights"},
    {"distributed.pipeline", "scale_grads_in_schedule", only,
     "a schedule that divides gradients (each label of a step counts alike)", "false"},
    {"distributed.pipeline", "patch_inner_model patch_causal_lm_model patch_stage_backward_maybe_with_nosync",
     flag, "how PyTorch runs a part of a model"},
    {"distributed.pipeline", "_target_", class_name, "class of the pipeline", "AutoPipeline PipelineConfig"},
    {"distributed.moe", "ignore_router_for_ac", flag, "what is computed again is routed as the first time"},
    {"distributed.moe", "wrap_outer_model", flag, "all parameters are divided"},
    {"distributed.moe", "lm_head_precision mp_policy", anything,
     "the dtype of the weights is that of the computation"},
    {"distributed.moe", "_target_", class_name, "class of the settings", "MoEParallelizerConfig"},
    {"loss_fn", "ignore_index", only, "another label that is ignored", "-100"},
    {"mtp", "ignore_index", only, "another label that is ignored", "-100"},
    {"loss_fn", "reduction", only,
     "another reduction of the loss than the sum divided by the number of labels", "sum"},
    {"loss_fn", "logit_softcapping", only, "soft-capping of logits", "0"},
    {"loss_fn", "fp32_upcast compile", flag, "the loss is computed in f32"},
    {"loss_fn", "tp_group", anything, "distributed.tp_size says it"},
    {"dataset", "fp8", anything, "padding for FP8", {}, "squad"},
    {"dataset",
     "start_of_turn_token",
     anything,
     "upstream ignores this key as well",
     {},
     "messages column_mapped"},
    {"dataset", "name", anything, "configuration of a data set of the Hub", {}, "messages column_mapped"},
    {"dataset", "batch_size", anything, "batch of the mock data", {}, "mock"},
    {"dataset",
     "index_mapping_dir num_dataset_builder_threads mmap_bin_files trainer_limit_val_batches "
     "trainer_limit_test_batches",
     anything,
     "how AutoModel builds and keeps its indices",
     {},
     "megatron"},
    {"dataset", "create_attention_mask", only, "an attention mask of documents", "false", "megatron"},
    {"dataset", "object_storage_config", only, "data in object storage", {}, "megatron"},
    {"packed_sequence", "prepacked", only, "reading packs made elsewhere", "false"},
    {"packed_sequence", "num_proc", count, "processes that pack"},
    {"packed_sequence", "split_across_pack", flag, "upstream ignores this key as well"},
    {"dataloader", "_target_", class_name, "class of the loader", "StatefulDataLoader DataLoader"},
    {"dataloader", "collate_fn", collater, "function that makes batches: rows have no padding here",
     "default_collater packed_sequence_thd_collater neat_packed_collater default_collate"},
    {"dataloader", "group_by_length", only, "grouping rows by length", "false"},
    {"dataloader", "num_workers prefetch_factor shuffle_buffer_size", whole, "workers of PyTorch's loader"},
    {"dataloader", "pin_memory persistent_workers", flag, "workers of PyTorch's loader"},
    {"dataloader", "dataloader_type", anything, "class of the loader"},
    {"optimizer", "dampening", only, "dampening", "0", "SGD"},
    {"optimizer", "amsgrad", only, "AMSGrad", "false", "AdamW Adam"},
    {"optimizer", "bias_correction", only, "Adam without bias correction", "true", "AdamW Adam"},
    {"optimizer", "maximize", only, "maximising the loss", "false"},
    {"optimizer", "foreach fused capturable differentiable", flag, "kernels of PyTorch"},
    {"optimizer", "master_weights store_param_remainders", flag,
     "masters and moments are f32 for weights of every dtype"},
    {"optimizer", "master_weight_dtype exp_avg_dtype exp_avg_sq_dtype", anything,
     "masters and moments are f32 for weights of every dtype"},
    {"lr_scheduler", "_target_", class_name, "class of the schedule", "OptimizerParamScheduler"},
    {"lr_scheduler", "use_checkpoint_opt_param_scheduler override_opt_param_scheduler", flag,
     "a checkpoint holds the position in the schedule alone, so the values of the recipe always count"},
    {"clip_grad_norm", "foreach", anything, "kernels of PyTorch"},
    {"mfu", "device", anything, "name of a device whose peak is known"},
    {"rng", "_target_", class_name, "class of the random numbers", "StatefulRNG"},
    {"rng", "ranked", anything, "another seed for each rank"},
    {"benchmark", "nsys_start nsys_end", whole, "window of a profiler"},
    {"benchmark", "nsys_ranks", anything, "window of a profiler"},
    {"benchmark", "num_nodes", whole, "the launcher says how many ranks there are"},
    {"compile", "enabled fullgraph dynamic", flag, "PyTorch's compiler"},
    {"compile", "dynamo_cache_size_limit", count, "PyTorch's compiler"},
    {"compile", "_target_ mode backend options", anything, "PyTorch's compiler"},
    {"peft", "_target_", class_name, "class of the adapters", "PeftConfig"},
    {"peft", "use_dora", only, "DoRA", "false"},
    {"peft", "use_memory_efficient_lora", flag,
     "adapters never form a matrix of the size of the weight's output"},
    {"peft", "use_triton", flag, "Triton's kernels"},
    {"", "fp8", only, "FP8 training", "false"},
    {"", "quantization", only, "quantisation", "false"},
    {"", "qat", only, "quantisation-aware training", "false"},
    {"", "wandb mlflow comet", anything, "experiment tracker: nothing is sent to it"},
    {"", "ci", anything, "AutoModel's tests"},
    {"", "skypilot", anything, "AutoModel's launcher on rented machines"},
    {"", "parallelizer", anything, "parallelism of AutoModel"},
    {"", "nvtx", anything, "measurements of AutoModel"},
    {"moe_metrics", "mode detailed_every_steps top_k_experts", anything,
     "for experiment trackers; the log has every expert of every layer"},
    {"tensorboard", "tensorboard_queue_size", count, "points are written at once"},
    {"tensorboard", "log_loss_scale_to_tensorboard", flag, "the loss is not scaled"},
    {"tensorboard", "log_interval timing_log_level", whole, "Megatron's console and timers"},
    {"tensorboard", "timing_log_option", anything, "Megatron's console and timers"},
    {"tensorboard", "log_num_zeros_in_grad", only, "counting zeros of gradients", "false"},
    {"tensorboard", "log_params_norm", only, "the norm of all parameters", "false"},
    {"tensorboard", "log_max_attention_logit", only, "the largest attention logit", "false"},
    {"tensorboard", "log_energy", only, "measuring energy", "false"},
    {"", "prewarm sdpa_method", anything, "kernels of PyTorch"},
    {"", "tool_call_eval", anything, "evaluation of tool calls"},
});

}  // namespace

std::span<const InertKeys> inert_keys() { return table; }

bool check_inert(const Place& at, const InertKeys& row) {
  // Nothing looks at the text of `anything`, so a variable in it need not be set.
  const bool unread = &row.form == &anything && at.value.kind == Value::Kind::scalar;
  if (unread ? at.value.text == "none" || at.value.text == "None" : is_null(at)) return false;
  row.form.check(at, row);
  return row.form.reported || (row.form.as_section && at.value.kind == Value::Kind::map);
}

std::string type_of(const InertKeys& row) {
  const std::string values = joined(words_of(row.values));
  if (&row.form == &only) return values.empty() ? "null" : values + " or null";
  return row.form.name + values;
}

const char* effect_of(const InertKeys& row) { return &row.form == &only ? "not in this build" : "none"; }

}  // namespace nemocube::recipe
