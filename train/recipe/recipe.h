#pragma once
#include <array>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/variants.h"
#include "data/datasets/column_mapped.h"
#include "data/datasets/messages.h"
#include "data/datasets/packing.h"
#include "data/datasets/squad.h"
#include "data/megatron/blend.h"
#include "data/text/moment.h"
#include "model/choices.h"
#include "model/config.h"
#include "model/initialise.h"
#include "model/lora.h"
#include "train/recipe/choices.h"
#include "train/recipe/distributed.h"

/// Recipes: what to train, on what, how. Section and key names, defaults and value
/// conventions are as in NeMo AutoModel's recipes. Steps are optimizer steps counted from 0.
/// Relative paths start from the working directory.
///
/// From the text to the structs below (recipe.cpp):
///   1. yaml.cpp parses the text into a tree of Value; override.cpp applies each --set to the tree.
///   2. Reader walks the tree along fields.h, which declares every key: its name, variable,
///      meaning and range. types.h reads a value of each C++ type; names.h has the words for
///      enumerations. Reader then looks at the keys that are left: inert_keys.h lists AutoModel's
///      keys without effect, all others are unknown.
///   3. rules.cpp and distributed_rules.cpp check
///      rules over several keys, and fill in
///      defaults that depend on other keys.
///   4. Reading collects the problems of all steps and throws them as one Error.
/// Two more visitors of fields.h go the other way: describe.cpp writes a recipe as YAML, and key_list.cpp
/// makes the table of docs/recipe.md. A new key is a variable here, a line in fields.h, and the table made
/// anew. The sections about ranks are in distributed.h and distributed_fields.h. environment.h adds settings
/// from environment variables, which are no part of a recipe.
namespace nemocube {

struct StepSchedulerSection {
  std::int64_t global_batch_size = 32;
  std::int64_t local_batch_size = 1;
  std::optional<std::int64_t> num_epochs = 10;
  std::optional<std::int64_t> max_steps;
  std::optional<std::int64_t> ckpt_every_steps = 100;
  bool save_checkpoint_every_epoch = true;
  std::optional<std::int64_t> val_every_steps;
  std::vector<int> preemption_signals{SIGTERM};  ///< key preemption_signal: numbers or names
  std::int64_t max_nonfinite_steps = 10;
};

/// Auxiliary terms of mixture-of-experts layers, all off by default.
struct MoeSection {
  double aux_loss_coeff = 0;
  double seq_aux_loss_coeff = 0;
  double global_aux_loss_coeff = 0;
  double z_loss_coeff = 0;
  double expert_bias_update_rate = 0;
};

/// How the model runs here. Names are as in AutoModel's section model.backend.
struct BackendSection {
  std::optional<DispatcherKind> dispatcher;  ///< see ParallelSettings::dispatcher
  std::optional<bool> use_deepep;            ///< absent once loaded: moved to `dispatcher`
  bool fake_balanced_gate = false;           ///< tokens go to the experts in turn, whatever the router says
};

enum class ModelSource { pretrained, config };  ///< weights from the folder, or fresh ones
struct ModelSection {
  ModelSource source = ModelSource::pretrained;
  std::string path;                              ///< a run or a checkpoint is replaced by the model in it
  std::optional<std::string> config;             ///< absent once loaded: moved to `path`
  std::optional<DType> dtype;                    ///< key torch_dtype
  std::optional<Initialisation> initialisation;  ///< absent for pretrained
  std::optional<std::int64_t> num_nextn_predict_layers;
  std::optional<bool> mtp_use_repeated_layer;
  std::optional<double> mtp_loss_scaling_factor;
  std::optional<Paradigm> dlm_paradigm;
  std::optional<std::int64_t> block_size;
  MoeSection moe;
  BackendSection backend;
  /// Not of the recipe: the model's config, where a rule of the
  /// recipe needed it. See config_of_model().
  std::optional<ModelConfig> known_config = {};
};

/// What happens where the optimizer tensors of checkpoint and run differ. In Megatron's words, a tensor is
/// "unexpected" when the run asks for it and the checkpoint lacks it, and "missing" when the checkpoint has
/// it and the run does not ask for it.
enum class Strictness {
  raise_all,         ///< an Error
  raise_unexpected,  ///< an Error for tensors that the checkpoint lacks
  log_all,           ///< a warning; tensors that the checkpoint lacks stay new
  log_unexpected,    ///< a warning for tensors that the checkpoint lacks, which stay new
  ignore_all
};
struct CheckpointSection {
  bool enabled = true;
  std::string checkpoint_dir = "checkpoints/";
  std::optional<std::string> restore_from;
  bool load_optim = true, load_scheduler = true, load_data = true;
  bool finetune = false;
  Strictness strictness = Strictness::raise_all;
  bool is_async = false;
  bool save_frozen = true;
  bool v4_compatible = false;
  std::optional<bool> dequantize_base_checkpoint;
  std::optional<std::int64_t> max_recent_checkpoints;
  std::string best_metric_key = "default";
};

/// When validation ends a run (train/schedule/early_stopping.h).
struct EarlyStoppingSection {
  std::optional<std::int64_t> patience;  ///< a recipe that trains has it
  double min_delta = 0;
  std::string metric = "default";  ///< name of a validation set
};

struct DebugSection {
  bool check_collectives = false;                 ///< CommOptions::check_collectives
  bool allow_differing_instruction_sets = false;  ///< Inputs::allow_differing_machines
  bool synchronise_launches = false;              ///< cuda::synchronise_launches
};

struct MtpSection {
  std::optional<double> scaling_factor;  ///< instead of model.mtp_loss_scaling_factor
};

enum class DllmMode { hybrid };
/// Training of a model that denoises (docs/block_diffusion.md). Keys are as in AutoModel.
struct DllmSection {
  std::optional<DllmMode> mode = {};  ///< a recipe with the section has it
  std::optional<std::int64_t> mask_token_id = {};
  double eps = 1e-3;
  std::optional<std::int64_t> block_size = {};
  std::optional<double> half_life_ratio = {};
  double ar_loss_alpha = 1;
  std::optional<std::int64_t> pad_block_size = {}, pad_seq_len_divisible = {};
  bool supervise_padding = false;
};

enum class LossKind { masked, chunked, fused_linear };
struct LossSection {
  LossKind kind = LossKind::masked;
  std::int64_t chunk_len = 32;  ///< chunked only
};

/// One or several files, or folders with a file for each split.
struct FileList {
  std::vector<std::string> names;
  bool operator==(const FileList&) const = default;
};

/// Variables of chat templates, as the JSON text of an object; empty: none.
struct TemplateVariables {
  std::string json;
  bool operator==(const TemplateVariables&) const = default;
};

enum class DatasetKind { squad, messages, column_mapped, hellaswag, megatron, mock, tokens };
struct DatasetSection {
  std::string key = "dataset";  ///< the key of this section, for messages
  DatasetKind kind = DatasetKind::squad;
  std::string dataset_name = "squad";
  FileList path;                  ///< several only for messages and column_mapped
  std::string path_key = "path";  ///< as the recipe spells it, for messages
  std::optional<std::string> split;
  std::optional<std::string> tokenizer;
  std::optional<std::int64_t> seq_length;
  std::optional<std::int64_t> limit_dataset_samples;
  std::string limit_key = "limit_dataset_samples";  ///< as the recipe spells it, for messages
  Padding padding = Padding::none;
  bool truncation = false;
  Truncation truncation_side = Truncation::left;
  bool append_eos = true;
  AnswerStart answer_start = AnswerStart::answer;
  /// Absent: the tokenizer's own, where it has one; null: without a template. See recipe_chat_templates().
  std::optional<std::optional<std::string>> chat_template;
  TemplateVariables chat_template_kwargs;
  bool mask_history = false, mask_reasoning_content = false, mask_generation_prompt = false;
  bool skip_invalid_samples = false;
  MaskOrder mask_order = MaskOrder::history_first;
  ToolArguments tool_call_arguments = ToolArguments::as_given;
  std::optional<bool> preserve_tool_argument_mappings;  ///< where given, says tool_call_arguments
  bool unshifted = false;
  ColumnMapping column_mapping;
  bool answer_only_loss_mask = true, use_hf_chat_template = false;
  std::string separator = " ";
  bool pad_to_max_length = true;
  std::vector<std::string> paths;
  MegatronSplit splits_to_build = MegatronSplit::train;
  std::int64_t seed = 1234;
  std::optional<std::int64_t> num_train_samples, num_val_samples, num_test_samples;
  std::optional<std::int64_t> shuffle_seed;
  std::optional<bool> streaming;           ///< absent: by the size of the file, see recipe_dataset()
  std::optional<std::int64_t> vocab_size;  ///< mock: never absent once loaded
  std::int64_t num_samples = 1'000'000;
};

/// Low-rank adapters (docs/lora.md): AutoModel's PeftConfig.
struct PeftSection {
  std::vector<std::string> target_modules, exclude_modules;  ///< patterns of modules (choose_adapters())
  bool match_all_linear = false;
  std::int64_t dim = 8;  ///< the rank
  double alpha = 32;
  bool use_rslora = false;
  double dropout = 0;
  DropoutPosition dropout_position = DropoutPosition::post;
  LoraInitialisation initialisation = LoraInitialisation::xavier;  ///< key lora_A_init
  std::optional<DType> lora_dtype;                                 ///< absent: as the weights
  bool moe_rank_scaling = false;
  std::optional<std::string> adapter_path;
};

/// Options of repair_embeddings() for the weights that were read; see EmbeddingRepair.
struct EmbeddingRepairSection {
  bool enabled = true;
  double min_norm = 1e-6;
  std::int64_t max_rows = 256;
};

struct PackedSequenceSection {
  std::int64_t packed_sequence_size = 0;
  Packing packing_strategy = Packing::thd;
  std::optional<std::int64_t> max_packs;
  bool drop_long_samples = true;
};

struct DataloaderSection {
  bool shuffle = true;  ///< tokens (rows in order) and validation: false if absent
  bool drop_last = false;
  std::optional<std::int64_t> batch_size;
};

struct ParamGroupOverride {
  std::string pattern;
  double lr_mult = 1, wd_mult = 1;
};
struct OptimizerSection {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 1e-4;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  std::optional<bool> adam_w_mode;  ///< `kind` already takes it into account
  double weight_decay = 0.01;       ///< SGD: 0 if absent
  double momentum = 0;
  bool nesterov = false;
  std::vector<ParamGroupOverride> param_group_overrides;
  bool no_weight_decay_on_1d = false;
};

enum class DecayStyle { constant, linear, cosine, inverse_square_root, wsd };
enum class WsdStyle { linear, cosine, exponential, minus_sqrt };
enum class WeightDecayStyle { constant, linear, cosine };
enum class ScheduleUnit { steps, samples };
/// Absent values are filled by make_schedule() (train/schedule/lr_schedule.h).
struct LrSchedulerSection {
  DecayStyle lr_decay_style = DecayStyle::cosine;
  std::optional<std::int64_t> lr_warmup_steps, lr_decay_steps;
  std::optional<double> init_lr, max_lr, min_lr;
  std::optional<double> start_wd, end_wd;
  std::optional<std::int64_t> wd_incr_steps;
  WeightDecayStyle wd_incr_style = WeightDecayStyle::constant;
  std::optional<std::int64_t> wsd_decay_steps;
  std::optional<WsdStyle> lr_wsd_decay_style;
  ScheduleUnit unit = ScheduleUnit::steps;
};

struct ClipSection {
  double max_norm = 1;  ///< infinity: no clipping
};

struct MfuSection {
  std::optional<double> peak_tflops;
};

/// The key `recipe`: a class of AutoModel's, as text or as `_target_` of a section. Of a dotted path the last
/// component counts.
struct RecipeClass {
  std::string text;
  friend bool operator==(const RecipeClass&, const RecipeClass&) = default;
};
/// Noise on the embeddings in training; `false` is 0.
struct NeftuneSetting {
  double alpha = 0;  ///< 0: no noise
  friend bool operator==(const NeftuneSetting&, const NeftuneSetting&) = default;
};
/// The class whose recipes measure the time of steps (train/run/benchmark.h).
inline constexpr const char* benchmark_class = "BenchmarkingRecipeForNextTokenPrediction";

/// Absent in recipes of other classes.
struct BenchmarkSection {
  std::optional<std::optional<std::int64_t>> warmup_steps;  ///< null: 0
  std::optional<std::optional<std::string>> json_output_path;
};

/// TensorBoard's event files: TensorboardOptions (train/logging/tensorboard_log.h). The keys are
/// Megatron-LM's options.
struct TensorboardSection {
  bool enabled = true;
  std::optional<std::string> tensorboard_dir;  ///< absent: tensorboard/ in checkpoint.checkpoint_dir
  std::int64_t tensorboard_log_interval = 1;
  bool log_timers_to_tensorboard = false, log_throughput = false, log_memory_to_tensorboard = false;
  bool log_world_size_to_tensorboard = false, log_validation_ppl_to_tensorboard = false;
};

/// The fields of the log about tokens of experts: ExpertRecord (train/logging/expert_record.h).
struct MoeMetricsSection {
  std::optional<bool> enabled;  ///< absent: with experts on several ranks
};

/// Generation during validation: SQuAD exact match and F1.
struct EvaluationSection {
  bool squad_metrics = false;
  std::int64_t max_new_tokens = 32;
  std::optional<std::int64_t> limit_samples;
  bool stop_at_newline = true;
  std::optional<std::string> predictions_path;  ///< see write_predictions()
};

struct Recipe {
  std::string file;          ///< where it was read, for messages
  RecipeClass recipe_class;  ///< key `recipe`; empty but for a benchmark
  std::int64_t seed = 42;    ///< from `seed` or `rng.seed`
  bool deterministic = true;
  DeviceChoice device = DeviceChoice::cpu;
  bool share_device = false;
  bool allow_tf32 = false;                 ///< cuda::allow_tf32
  bool deterministic_collectives = false;  ///< CommOptions::deterministic_collectives
  bool cuda_graphs = false;                ///< StepReplay
  StepSchedulerSection step_scheduler;
  std::optional<ModelSection> model;
  std::vector<std::string> freeze;  ///< patterns of modules that are not trained (frozen_tensors())
  std::optional<PeftSection> peft;  ///< absent: the weights themselves are trained
  std::optional<EmbeddingRepairSection> embedding_row_repair;  ///< absent: rows stay as they were read
  NeftuneSetting neftune;
  std::optional<std::string> tokenizer;  ///< tokenizer.pretrained_model_name_or_path
  CheckpointSection checkpoint;
  DistributedSection distributed;
  DistEnvSection dist_env;
  DebugSection debug;
  LossSection loss;
  MtpSection mtp;
  std::optional<DllmSection> dllm;  ///< absent: nothing is noised
  std::optional<DatasetSection> dataset;
  std::map<std::string, DatasetSection> validation_datasets;  ///< validation_dataset: "default"; _x: "x"
  std::optional<EarlyStoppingSection> early_stopping;         ///< absent: validation ends no run
  PackedSequenceSection packed_sequence;
  DataloaderSection dataloader;
  DataloaderSection validation_dataloader{.shuffle = false, .drop_last = false, .batch_size = {}};
  std::optional<OptimizerSection> optimizer;
  std::optional<LrSchedulerSection> lr_scheduler;  ///< absent: constant learning rate
  ClipSection clip_grad_norm;
  KernelChoice kernels;  ///< checked for use in training and evaluation
  MfuSection mfu;        ///< key peak_tflops, also of section benchmark
  BenchmarkSection benchmark;
  MoeMetricsSection moe_metrics;
  std::optional<TensorboardSection> tensorboard;  ///< absent: no event files
  EvaluationSection evaluation;
  std::vector<std::string> no_effect;  ///< key paths that were given and have no effect in this build
  std::vector<std::string> warnings;   ///< messages about keys that this recipe makes pointless
  std::map<std::string, std::string>
      interpolated;  ///< text that came out of variables, to the text as written
  /// Not of the recipe: the present moment in chat templates (strftime_now), the same in all renderings of a
  /// run. Absent: the moment at which a template is loaded.
  std::optional<Moment> moment = {};
};

/// Whether the recipe is a benchmark. A benchmark has mock data, a constant learning rate, and neither
/// clipping, validation, checkpoints nor logs, whatever the recipe says about these.
bool is_benchmark(const Recipe& recipe);

/// The use of a recipe, which decides which sections it must have.
enum class RecipeUse {
  train,     ///< model, dataset, optimizer; batch sizes that divide; the model exists
  plan,      ///< as train, but the files of the data need not exist
  evaluate,  ///< model and a validation dataset; the model exists
  data,      ///< dataset or a validation dataset
  ranks,     ///< nothing but how ranks share the work: distributed, dist_env, debug
  schedule,  ///< step_scheduler.max_steps; sections other than that, optimizer and lr_scheduler are not read
};

/// Reads a recipe and applies overrides "a.b=value" (value in YAML, absent sections are created, numbers
/// index lists, null takes a key out unless null is one of its values). Throws one Error with all problems, a
/// line for each: file, line, key, what was wanted and what was found; for an unknown key, the nearest known
/// one.
Recipe load_recipe(const std::filesystem::path& path, const std::vector<std::string>& overrides = {},
                   RecipeUse use = RecipeUse::train);
/// The same for text; `name` stands for the file in messages.
Recipe parse_recipe(const std::string& yaml, const std::string& name,
                    const std::vector<std::string>& overrides = {}, RecipeUse use = RecipeUse::train);

/// The resolved recipe in YAML, defaults filled in, ignored keys left out. Loading it gives the same recipe.
std::string describe(const Recipe& recipe);
/// describe() for files that others may read: text that came from environment variables, and may be a secret,
/// is written as in the recipe (${oc.env:NAME}). A comment for each has a digest, by which a later run sees
/// that the value has changed.
std::string describe_for_file(const Recipe& recipe);
/// A message for such files: texts that came from variables (Recipe::interpolated) are written as in the
/// recipe, unless they have fewer than four characters, as numbers do.
std::string message_for_file(std::string message, const std::map<std::string, std::string>& interpolated);
/// The comment for the value `text`, written `written`; it begins with
/// interpolation_note(), and ends with the digest. The digest has 16 bits, so nobody can
/// tell from it which of many guesses is the value.
std::string interpolation_note(const std::string& written);
std::string interpolation_digest(const std::string& text);

/// The number of forward passes per step on each of `dp` data-parallel ranks. Throws Error when the global
/// batch does not divide into whole forward passes.
std::int64_t grad_accumulation_steps(const Recipe& recipe, std::int64_t dp);

/// Microbatches of a step on each of `dp` data-parallel ranks: local_batch_size / pp_microbatch_size
/// for each of grad_accumulation_steps(); without a pipeline a forward pass is one microbatch.
/// Throws Error when a quotient is not whole.
std::int64_t microbatches_of_step(const Recipe& recipe, std::int64_t dp);

}  // namespace nemocube
