#pragma once
#include <concepts>

#include "train/recipe/distributed_fields.h"
#include "train/recipe/recipe.h"

/// Every key with an effect: name, variable, meaning, and range where the type has more values. Three classes
/// visit these declarations: Reader, Writer (describe.cpp) and KeyList. apply_rules() handles rules over
/// several keys. distributed_fields.h has the sections about ranks.
namespace nemocube::recipe {

// Bounds beyond which no run makes sense: an update would overflow, or divide by what rounds to zero.
inline constexpr Range learning_rate{.low = 0, .high = 100};
inline constexpr Range decay_rate{.low = 0, .high = 100};
inline constexpr Range multiplier{.low = 0, .high = 1e4};
inline constexpr Range coefficient{.low = 0, .high = 100};
inline constexpr Range mtp_depths{.low = 0, .high = 1024};
inline constexpr Range adapter_rank{.low = 1, .high = static_cast<double>(largest_adapter_rank)};
inline constexpr Range bias_rate{.low = 0, .high = 1};
inline constexpr Range seed_of_32_bits{.low = 0, .high = 4294967295};
inline constexpr Range sample_count{.low = 1, .high = 1099511627776};  // 2^40, MegatronOptions::max_samples
inline constexpr Range epsilon{.low = 1e-30, .high = 1};

void fields(auto& io, Like<StepSchedulerSection> auto& s) {
  io.field("global_batch_size", s.global_batch_size, "rows of an optimizer step, on all ranks", token_count);
  io.field("local_batch_size", s.local_batch_size, "rows of a forward pass on one data-parallel rank",
           token_count);
  io.field("num_epochs", s.num_epochs, "the run ends after so many; null: as many as max_steps needs",
           positive);
  io.field("max_steps", s.max_steps, "the run ends after so many steps, or with the last epoch", positive);
  io.field("ckpt_every_steps", s.ckpt_every_steps, "steps between checkpoints; null: an epoch", positive);
  io.field("save_checkpoint_every_epoch", s.save_checkpoint_every_epoch, "also at the end of each epoch");
  io.field("val_every_steps", s.val_every_steps,
           "steps between validations besides those at checkpoints; null: only these", positive);
  io.field("preemption_signal", s.preemption_signals,
           "a signal ends the run with a checkpoint; null: none does");
  io.field("max_nonfinite_steps", s.max_nonfinite_steps,
           "the run ends after so many skipped steps in a row; 0: never (own)", nonnegative);
}

void fields(auto& io, Like<MoeSection> auto& s) {
  io.field("aux_loss_coeff", s.aux_loss_coeff, "load balance over the microbatch (own)", coefficient);
  io.field("seq_aux_loss_coeff", s.seq_aux_loss_coeff, "load balance over each sequence (own)", coefficient);
  io.field("global_aux_loss_coeff", s.global_aux_loss_coeff,
           "load balance over the microbatches of a step so far (own)", coefficient);
  io.field("z_loss_coeff", s.z_loss_coeff, "size of the router's logits (own)", coefficient);
  io.field("expert_bias_update_rate", s.expert_bias_update_rate,
           "step of the router's correction bias, once an optimizer step (own)", bias_rate);
}

void fields(auto& io, Like<BackendSection> auto& s) {
  io.field(
      "dispatcher", s.dispatcher,
      "how tokens reach experts of other ranks; deepep and hybridep are alltoall, torch is allgather; null: "
      "alltoall");
  io.field("use_deepep", s.use_deepep, "true: dispatcher alltoall; false: dispatcher allgather");
  io.alias("enable_deepep", s.use_deepep, "model.backend.use_deepep");
  io.field("fake_balanced_gate", s.fake_balanced_gate,
           "spread tokens evenly over the experts, whatever the router says");
}

void fields(auto& io, Like<ModelSection> auto& s) {
  io.target(s.source, "weights from the folder, or fresh ones");
  io.field("pretrained_model_name_or_path", s.path,
           "folder in Hugging Face form, of a checkpoint or of a run; from_config also takes a config.json");
  io.path_or_section("config", s.config, "the path, for from_config");
  io.field("torch_dtype", s.dtype, "dtype of the weights; auto: as stored");
  io.field("initialisation", s.initialisation, "from_config: law of the fresh weights, hf if null (own)");
  io.field(
      "num_nextn_predict_layers", s.num_nextn_predict_layers,
      "depths of multi-token prediction that are trained; null: with a scaling factor those that config.json "
      "says, else none",
      mtp_depths);
  io.field("mtp_use_repeated_layer", s.mtp_use_repeated_layer,
           "all depths are one layer; null: what the weights say");
  io.field("mtp_loss_scaling_factor", s.mtp_loss_scaling_factor,
           "weight of the mean loss of the depths; null: 0.1", coefficient);
  io.field("dlm_paradigm", s.dlm_paradigm,
           "how a model that denoises is trained; such a model wants it, others have none");
  io.field("block_size", s.block_size,
           "dlm_paradigm block_diff: tokens of a block of attention; null: as config.json says", token_count);
  io.section("moe", s.moe);
  io.section("backend", s.backend);
}

void fields(auto& io, Like<PeftSection> auto& s) {
  io.field(
      "target_modules", s.target_modules,
      "patterns of modules to adapt, like *.q_proj, *.mixer.experts; none of this key, exclude_modules and "
      "match_all_linear: *_proj");
  io.field("exclude_modules", s.exclude_modules,
           "patterns of modules to leave out; all other linear layers are adapted, lm_head too");
  io.field("match_all_linear", s.match_all_linear, "adapt every linear layer, lm_head too");
  io.field("dim", s.dim, "rank r of the adapters", adapter_rank);
  io.field("alpha", s.alpha, "scale of an adapter: alpha / r", positive);
  io.field("use_rslora", s.use_rslora, "the scale is alpha / sqrt(r) (PEFT's)");
  io.field("dropout", s.dropout, "probability of dropout in training, not in routed experts", below_one);
  io.field("dropout_position", s.dropout_position, "of what enters an adapter (pre) or leaves it (post)");
  io.field("lora_A_init", s.initialisation, "law of the fresh A: normal (xavier) or uniform");
  io.field("lora_dtype", s.lora_dtype, "dtype of the adapters: that of the weights, or f32");
  io.field("moe_rank_scaling", s.moe_rank_scaling,
           "adapters of routed experts have the rank dim / num_experts_per_tok");
  io.field("adapter_path", s.adapter_path,
           "folder of an adapter to begin with, or of a run or checkpoint that has one; its modules, ranks "
           "and scales count (own)");
}

void fields(auto& io, Like<EmbeddingRepairSection> auto& s) {
  io.field("enabled", s.enabled,
           "replace damaged rows of the embeddings by those of lm_head, scaled to the usual norm");
  io.field("min_norm", s.min_norm, "rows of at most this norm are damaged, and rows that are not finite",
           nonnegative);
  io.field("max_rows", s.max_rows, "more damaged rows are an error", positive);
}

void fields(auto& io, Like<CheckpointSection> auto& s) {
  io.field("enabled", s.enabled, "save checkpoints");
  io.field("checkpoint_dir", s.checkpoint_dir, "folder of the run: logs and checkpoints");
  io.field("restore_from", s.restore_from,
           "null: LATEST if there is one; LATEST, LOWEST_VAL, a name, a path");
  io.field("load_optim", s.load_optim,
           "resume with the optimizer's moments and masters; false: the optimizer is new, its masters the "
           "weights");
  io.field("load_scheduler", s.load_scheduler,
           "resume at the checkpoint's place in the learning-rate schedule; false: at its start");
  io.field("load_data", s.load_data,
           "resume at the checkpoint's place in the data, whose files must be what they were; false: at the "
           "first row, and batches and data may be others "
           "(own)");
  io.field("finetune", s.finetune, "take the checkpoint's weights alone, and begin at step 0");
  io.field("strictness", s.strictness,
           "when the optimizer's tensors are not those of the checkpoint (Megatron's dist_ckpt_strictness)");
  io.field("is_async", s.is_async,
           "copy weights and optimizer to the host's memory, and write the copy while training goes on");
  io.field(
      "save_frozen", s.save_frozen,
      "false: checkpoints leave the weights that `freeze` names to the model that the run began with (own)");
  io.field("v4_compatible", s.v4_compatible,
           "true: adapters of experts are written in a file tensor for each expert; false: stacked, as PEFT "
           "reads them");
  io.field("dequantize_base_checkpoint", s.dequantize_base_checkpoint,
           "read FP8 and NVFP4 weights as the numbers they stand for; null: true; false: refuse them");
  io.field("max_recent_checkpoints", s.max_recent_checkpoints, "older ones are removed; null: none is",
           positive);
  io.field("best_metric_key", s.best_metric_key, "name of the validation set that LOWEST_VAL is about");
}

void fields(auto& io, Like<EarlyStoppingSection> auto& s) {
  io.field("patience", s.patience,
           "the run ends after so many validations in a row without a lower loss; required (own)", positive);
  io.field("min_delta", s.min_delta,
           "a loss counts as lower that is below the lowest one before by more than this (own)", nonnegative);
  io.field("metric", s.metric, "name of the validation set whose loss counts (own)");
}

void fields(auto& io, Like<DebugSection> auto& s) {
  io.field("check_collectives", s.check_collectives,
           "ranks compare what they are about to exchange; slower (own)");
  io.field(
      "allow_differing_instruction_sets", s.allow_differing_instruction_sets,
      "ranks on CPUs of several kinds, or with other numbers of threads, work together; the same command "
      "then gives other bits on other nodes (own)");
  io.field("synchronise_launches", s.synchronise_launches,
           "on cuda: wait after every launch, so that an error names its kernel; slow (own)");
}

void fields(auto& io, Like<LossSection> auto& s) {
  io.target(s.kind, "how logits and loss are computed");
  io.classes("ChunkedCrossEntropy");
  io.field("chunk_len", s.chunk_len, "rows of logits at a time", positive);
}

void fields(auto& io, Like<MtpSection> auto& s) {
  io.field("scaling_factor", s.scaling_factor, "instead of model.mtp_loss_scaling_factor", coefficient);
}

void fields(auto& io, Like<DllmSection> auto& s) {
  io.field("mode", s.mode, "what is noised, and the loss; required");
  io.field("mask_token_id", s.mask_token_id, "token in the place of a noised one; null: as config.json says",
           nonnegative);
  io.field("eps", s.eps, "the least probability of noise", below_one);
  io.field("block_size", s.block_size,
           "tokens of a block that has a probability of noise of its own; null: each sequence has one",
           token_count);
  io.field("half_life_ratio", s.half_life_ratio,
           "how strongly noise in a block prefers its end, the stronger the smaller; null: 0.25", multiplier);
  io.field("ar_loss_alpha", s.ar_loss_alpha,
           "weight of the noised tokens' loss, beside that of the next tokens, which has the weight 1",
           coefficient);
  io.field("pad_block_size", s.pad_block_size,
           "texts are filled up to a multiple of this with end-of-text tokens, which are targets; null: they "
           "are not",
           token_count);
  io.field("pad_seq_len_divisible", s.pad_seq_len_divisible, "rows have no padding here", positive);
  io.field("supervise_padding", s.supervise_padding, "rows have no padding here; want false");
}

void fields(auto& io, Like<ColumnMapping> auto& s) {
  io.field("context", s.context, "column that begins the prompt");
  io.field("question", s.question, "column that ends the prompt");
  io.field("answer", s.answer, "column with the answer");
}

void fields(auto& io, Like<DatasetSection> auto& s) {
  io.target(s.kind, "class of the data set", true);
  io.classes("squad");
  io.field("dataset_name", s.dataset_name, "file or folder of the questions; `path` wins");
  io.classes("squad column_mapped");
  io.field(
      "answer_start", s.answer_start,
      "first target without a chat template: the answer's first token, or the space before it; prompt: as "
      "AutoModel, behind the number of tokens that the prompt has alone (own)");
  io.classes("squad messages column_mapped hellaswag tokens");
  io.field("path", s.path,
           "file, or folder with a file for each split; messages, column_mapped: or a list of them, whose "
           "rows follow one "
           "another");
  io.field("limit_dataset_samples", s.limit_dataset_samples, "so many rows at most", positive);
  io.classes("messages column_mapped");
  io.alias("path_or_dataset_id", s.path, s.key + ".path");
  io.classes("hellaswag");
  io.alias("path_or_dataset", s.path, s.key + ".path");
  io.alias("num_samples_limit", s.limit_dataset_samples, s.key + ".limit_dataset_samples", positive);
  io.field("separator", s.separator, "text between context and ending; as AutoModel: \"\" (own)");
  io.field("pad_to_max_length", s.pad_to_max_length,
           "pad rows to the longest of the data set, rounded up to a multiple of 8");
  io.classes("column_mapped");
  io.section("column_mapping", s.column_mapping);
  io.field("answer_only_loss_mask", s.answer_only_loss_mask,
           "false: the tokens of the prompt are targets, too");
  io.field("use_hf_chat_template", s.use_hf_chat_template,
           "context, question and answer become messages for the tokenizer's chat template");
  io.classes("messages");
  io.field("mask_history", s.mask_history, "only the last turn of the assistant is a target");
  io.field("mask_reasoning_content", s.mask_reasoning_content,
           "with a chat template: the assistant's reasoning is no target");
  io.field("mask_generation_prompt", s.mask_generation_prompt,
           "with a chat template: what its generation prompt supplies, such as the assistant's header and "
           "`<think></think>`, is no target");
  io.field("mask_order", s.mask_order,
           "which of these two masks comes first; reasoning_first: as AutoModel, which loses what the last "
           "turn has "
           "in front of its reasoning (own)");
  io.field(
      "tool_call_arguments", s.tool_call_arguments,
      "how a chat template sees arguments of tool calls that are objects; text: as AutoModel, as JSON text "
      "(own)");
  io.field("preserve_tool_argument_mappings", s.preserve_tool_argument_mappings,
           "AutoModel's key for `tool_call_arguments`: true is as_given, false text");
  io.field("unshifted", s.unshifted, "rows keep their last token as an input; inspect shows a loss mask");
  io.field(
      "skip_invalid_samples", s.skip_invalid_samples,
      "leave out rows of another form, lines that are not JSON, and rows that the chat template refuses");
  io.field("shuffle_seed", s.shuffle_seed, "shuffle the rows before the split is cut; null: do not",
           nonnegative);
  io.classes("megatron");
  io.field("paths", s.paths,
           "prefix of .bin and .idx files, a pattern for their names, a JSON file of a list, or a list of "
           "prefixes, "
           "with weights in front of them or without");
  io.field("splits_to_build", s.splits_to_build, "which part of the files");
  io.field("seed", s.seed, "order of sequences and samples", seed_of_32_bits);
  io.field("num_train_samples", s.num_train_samples, "null: as many as max_steps needs, else one time over",
           sample_count);
  io.field("num_val_samples", s.num_val_samples, "null: one time over the tokens", sample_count);
  io.field("num_test_samples", s.num_test_samples, "null: one time over the tokens", sample_count);
  io.classes("mock");
  io.field("vocab_size", s.vocab_size, "token ids are below; null: 1024, in a benchmark the model's",
           positive);
  io.field("num_samples", s.num_samples, "number of rows", positive);
  io.classes("squad messages column_mapped megatron mock");
  io.field("seq_length", s.seq_length,
           "tokens of a row, for padding and truncation; mock: 1024 if null, megatron: 2048", token_count);
  io.classes("mock");
  io.alias("seq_len", s.seq_length, s.key + ".seq_length", token_count);
  io.classes("squad messages column_mapped hellaswag megatron");
  io.field("split", s.split,
           "`train`, `validation[:100]`; null: train; megatron: shares of train, validation and test, null: "
           "900,50,50");
  io.path_or_section(
      "tokenizer", s.tokenizer,
      "file or folder, also of a checkpoint or of a run; null: the recipe's, else the model's");
  io.classes("squad messages column_mapped hellaswag");
  io.field("streaming", s.streaming,
           "read and tokenise rows of a JSON-lines file when they are used, with the same result; absent: "
           "where the "
           "file has 1 GiB or more (own)");
  io.field("append_eos", s.append_eos,
           "an end-of-text token is the last target; chat templates end rows themselves (own)");
  io.classes("squad messages column_mapped");
  io.field("padding", s.padding, "max_length pads rows to seq_length; otherwise batches are padded");
  switch_field<Cut>(io, "truncation", s.truncation, "cut rows to seq_length");
  io.field("truncation_side", s.truncation_side, "what is cut: left, right, or the context alone (own)");
  io.classes("squad messages");
  io.field("chat_template", s.chat_template,
           "Jinja text, a file, or the name of one of the tokenizer's templates; absent: the tokenizer's "
           "own, except "
           "for squad with truncation; null: none");
  io.classes("squad messages column_mapped");
  io.field("chat_template_kwargs", s.chat_template_kwargs,
           "variables of the chat template, in training and evaluation; those of a row win (own)");
  io.classes("");
}

void fields(auto& io, Like<PackedSequenceSection> auto& s) {
  io.field("packed_sequence_size", s.packed_sequence_size, "tokens of a pack; 0: rows are not packed",
           token_count_or_zero);
  io.field("packing_strategy", s.packing_strategy, "rows in order (thd), or those that fit best (neat)");
  io.field("max_packs", s.max_packs, "so many packs at most", positive);
  io.field("drop_long_samples", s.drop_long_samples, "leave out rows longer than a pack; false: an error");
}

void fields(auto& io, Like<DataloaderSection> auto& s) {
  io.field("shuffle", s.shuffle,
           "rows in another order each epoch; tokens, megatron and validation: false if absent");
  io.field("drop_last", s.drop_last, "leave out a last batch that is not full");
  io.field("batch_size", s.batch_size, "null, or for training local_batch_size", positive);
}

void fields(auto& io, Like<ParamGroupOverride> auto& s) {
  io.field("pattern", s.pattern,
           "regular expression; the first entry found somewhere in a parameter's name counts");
  io.field("lr_mult", s.lr_mult, "factor of the learning rate", multiplier);
  io.field("wd_mult", s.wd_mult, "factor of the weight decay", multiplier);
}

void fields(auto& io, Like<OptimizerSection> auto& s) {
  io.target(s.kind, "class of the optimizer");
  io.field("lr", s.lr, "learning rate", learning_rate);
  io.field("weight_decay", s.weight_decay, "decay of the weights; SGD: 0 if absent", decay_rate);
  io.classes("SGD");
  io.field("momentum", s.momentum, "momentum", below_one);
  io.field("nesterov", s.nesterov, "Nesterov's momentum");
  io.classes("AdamW Adam");
  io.field("betas", s.betas, "decay of the two moments in a step", below_one);
  io.field("eps", s.eps, "added to the root of the second moment", epsilon);
  io.field("adam_w_mode", s.adam_w_mode,
           "true is AdamW, false Adam, whatever the class; null: the class decides");
  io.classes("");
  io.list("param_group_overrides", s.param_group_overrides, "rates of some parameters");
  io.field("no_weight_decay_on_1d", s.no_weight_decay_on_1d,
           "no decay of `*.bias` and one-dimensional parameters (own)");
}

void fields(auto& io, Like<LrSchedulerSection> auto& s) {
  io.field("lr_decay_style", s.lr_decay_style, "curve from max_lr to min_lr");
  io.field("lr_warmup_steps", s.lr_warmup_steps, "null: a tenth of the run, at most 1000", nonnegative);
  io.field("lr_decay_steps", s.lr_decay_steps,
           "where min_lr is reached; null: the end of the run, as it was when the run began", positive);
  io.field("init_lr", s.init_lr, "where the warm-up begins; null: lr / 10", learning_rate);
  io.field("max_lr", s.max_lr, "where the warm-up ends; null: lr", learning_rate);
  io.field("min_lr", s.min_lr, "where the decay ends; null: lr / 100", learning_rate);
  io.field("start_wd", s.start_wd, "weight decay at the start; null: the optimizer's", decay_rate);
  io.field("end_wd", s.end_wd, "weight decay after wd_incr_steps; null: the optimizer's", decay_rate);
  io.field("wd_incr_steps", s.wd_incr_steps, "null: the length of the run", nonnegative);
  io.field("wd_incr_style", s.wd_incr_style, "curve from start_wd to end_wd");
  io.field("wsd_decay_steps", s.wsd_decay_steps, "length of the last phase of WSD", positive);
  io.field("lr_wsd_decay_style", s.lr_wsd_decay_style, "curve of the last phase of WSD");
  io.field("unit", s.unit, "what the *_steps keys of this section count (own)");
}

void fields(auto& io, Like<ClipSection> auto& s) {
  io.field("max_norm", s.max_norm, "the gradient's global norm is cut to this; 0 and .inf: it is not",
           Range{.low = 0, .infinite = true, .null_is_default = true});
}

void fields(auto& io, Like<EvaluationSection> auto& s) {
  io.field("squad_metrics", s.squad_metrics, "answer the questions of squad sets in validation (own)");
  io.field("max_new_tokens", s.max_new_tokens, "tokens of an answer (own)", positive);
  io.field("limit_samples", s.limit_samples, "questions to answer; null: all (own)", positive);
  io.field("stop_at_newline", s.stop_at_newline, "an answer ends with its line (own)");
  io.field("predictions_path", s.predictions_path,
           "file for the answers, JSON of question id to answer (own)");
}

void fields(auto& io, Like<MfuSection> auto& s) {
  io.field("peak_tflops", s.peak_tflops, "of the machine, 10^12 operations a second; null: no mfu is logged",
           positive);
}

void fields(auto& io, Like<TensorboardSection> auto& s) {
  io.field("enabled", s.enabled,
           "a run writes event files where it has this section; false: it does not (own)");
  io.field("tensorboard_dir", s.tensorboard_dir,
           "folder of the event files, for one run alone; null: tensorboard/ in checkpoint.checkpoint_dir");
  io.field("tensorboard_log_interval", s.tensorboard_log_interval, "steps from one point to the next",
           positive);
  io.field("log_timers_to_tensorboard", s.log_timers_to_tensorboard,
           "scalar iteration-time: seconds of a step");
  io.field("log_throughput", s.log_throughput, "scalar throughput: 10^12 model operations a second and rank");
  io.field("log_memory_to_tensorboard", s.log_memory_to_tensorboard, "scalar mem-max-allocated-bytes");
  io.field("log_world_size_to_tensorboard", s.log_world_size_to_tensorboard, "scalar world-size: all ranks");
  io.field("log_validation_ppl_to_tensorboard", s.log_validation_ppl_to_tensorboard,
           "scalar `lm loss validation ppl`: exp(min(20, loss))");
}

void fields(auto& io, Like<MoeMetricsSection> auto& s) {
  io.field("enabled", s.enabled,
           "log the tokens of each expert; null: where ep_size * expert_tp_size is above 1");
}

void fields(auto& io, Like<Recipe> auto& r) {
  io.field(
      "recipe", r.recipe_class,
      "AutoModel's class; BenchmarkingRecipeForNextTokenPrediction measures the time of steps, classes that "
      "train something else than models of texts are refused, others change nothing",
      or_default);
  io.field("seed", r.seed, "order of rows, fresh weights", nonnegative);
  io.section("rng", [&](auto& sub) { sub.alias("seed", r.seed, "seed", nonnegative); });
  io.field("deterministic", r.deterministic, "what the CPU computes is deterministic either way (own)");
  io.field("device", r.device,
           "where to compute; auto: cuda if there is a device and every operation has CUDA kernels, else cpu "
           "(own)");
  io.field("share_device", r.share_device, "several ranks of a node may compute on one CUDA device (own)");
  io.field("allow_tf32", r.allow_tf32,
           "on cuda: cuBLAS may round the operands of f32 products to TF32, 10 bits of mantissa (own)");
  io.field("deterministic_collectives", r.deterministic_collectives,
           "on cuda: sums over ranks by NCCL are formed in the order of ranks, as those by MPI always are; "
           "the same bits on any machine, and slower (own)");
  io.field("cuda_graphs", r.cuda_graphs,
           "on cuda: the passes of a microbatch, and the update, are queued by one launch each; all "
           "microbatches get the size of the largest one (own)");
  io.section("step_scheduler", r.step_scheduler);
  io.section("model", r.model);
  io.field("freeze", r.freeze,
           "patterns of modules whose weights are not trained: names like model.layers.3, lm_head, "
           "*.mixer.experts; a star "
           "stands for anything, dots too (own)");
  io.section("peft", r.peft);
  io.section("embedding_row_repair", r.embedding_row_repair);
  io.value_or_section(
      "neftune", "noise_alpha", r.neftune,
      "NEFTune: alpha of the uniform noise on the embeddings in training, +-alpha / sqrt(S H) for rows "
      "padded to S tokens and hidden size H; 0, false and null: none",
      Range{.low = 0, .null_is_default = true});
  io.path_or_section("tokenizer", r.tokenizer,
                     "folder with tokenizer.json, or that file; null: the model's (own)");
  io.section("checkpoint", r.checkpoint);
  io.section("distributed", r.distributed);
  io.alias_section("autopipeline", r.distributed.pipeline, "distributed.pipeline");
  io.section("dist_env", r.dist_env);
  io.section("debug", r.debug);
  io.section("loss_fn", r.loss);
  io.section("mtp", r.mtp);
  io.section("dllm", r.dllm);
  io.section("dataset", r.dataset);
  io.sections("validation_dataset", r.validation_datasets, "dataset");
  io.section("early_stopping", r.early_stopping);
  io.section("packed_sequence", r.packed_sequence);
  io.section("dataloader", r.dataloader);
  io.section("validation_dataloader", r.validation_dataloader, "dataloader");
  io.section("optimizer", r.optimizer);
  io.section("lr_scheduler", r.lr_scheduler);
  io.section("clip_grad_norm", r.clip_grad_norm);
  io.field("kernels", r.kernels.by_op, "operation to the variant of it that runs (own)");
  io.section("mfu", r.mfu);
  io.section("benchmark", [&](auto& sub) {
    sub.field("warmup_steps", r.benchmark.warmup_steps,
              "benchmark: steps at the start that are not measured; absent: 0", nonnegative);
    sub.field("json_output_path", r.benchmark.json_output_path, "benchmark: file for the results");
    sub.alias("peak_tflops", r.mfu.peak_tflops, "mfu.peak_tflops", positive);
  });
  io.section("moe_metrics", r.moe_metrics);
  io.section("tensorboard", r.tensorboard);
  io.section("evaluation", r.evaluation);
  io.section("compile", nothing);
}

/// Visits the contents of a section: a struct with fields(), or a function.
template <class Io>
void visit(Io& io, auto& contents) {
  if constexpr (std::invocable<decltype(contents), Io&>)
    contents(io);
  else
    fields(io, contents);
}

}  // namespace nemocube::recipe
