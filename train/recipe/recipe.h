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
#include "core/kernels.h"
#include "data/datasets/packing.h"
#include "data/datasets/squad.h"
#include "model/initialise.h"
#include "train/optimizer/optimizer.h"

/// Recipes: what to train, on what, how. Section and key names, defaults and value conventions are those of
/// NeMo AutoModel's recipes; keys of our own are marked (own). Steps are optimizer steps counted from 0.
/// Relative paths are relative to the working directory.
namespace nemocube {

struct StepSchedulerSection {
  std::int64_t global_batch_size = 32;                 ///< samples per optimizer step, all ranks
  std::int64_t local_batch_size = 1;                   ///< samples per forward pass and data-parallel rank
  std::optional<std::int64_t> num_epochs = 10;         ///< null: as many as max_steps needs
  std::optional<std::int64_t> max_steps;               ///< the run ends here or with the last epoch
  std::optional<std::int64_t> ckpt_every_steps = 100;  ///< null: once an epoch
  bool save_checkpoint_every_epoch = true;
  std::optional<std::int64_t> val_every_steps;   ///< null: only at checkpoint steps
  std::vector<int> preemption_signals{SIGTERM};  ///< key preemption_signal: numbers or names; null: none
  std::int64_t max_nonfinite_steps = 10;  ///< (own) stop after so many skipped steps in a row; 0: never
};

/// (own) Auxiliary terms of mixture-of-experts layers, all off by default.
struct MoeSection {
  double aux_loss_coeff = 0;         ///< load balance over the microbatch
  double seq_aux_loss_coeff = 0;     ///< load balance over each sequence
  double global_aux_loss_coeff = 0;  ///< load balance over the microbatches of a step so far
  double z_loss_coeff = 0;
  double expert_bias_update_rate = 0;  ///< step of the router's correction bias, once per optimizer step
};

enum class ModelSource { pretrained, config };  ///< weights from the directory, or fresh ones
struct ModelSection {
  ModelSource source = ModelSource::pretrained;
  std::string path;            ///< directory in Hugging Face form; from_config also takes its config.json
  std::optional<DType> dtype;  ///< key torch_dtype, bf16 or f32; auto: as stored
  Initialisation initialisation = Initialisation::hf;  ///< (own) from_config: the law of fresh weights
  MoeSection moe;
};

struct CheckpointSection {
  bool enabled = true;
  std::string checkpoint_dir = "checkpoints/";
  std::optional<std::string> restore_from;  ///< null: LATEST; LOWEST_VAL, a name, a path
  std::optional<std::int64_t> max_recent_checkpoints;
  std::string best_metric_key = "default";  ///< name of the validation set that drives LOWEST_VAL
};

struct DistributedSection {
  std::optional<std::int64_t> dp_size, dp_replicate_size;  ///< null: derived from the number of ranks
  std::int64_t tp_size = 1, pp_size = 1, cp_size = 1, ep_size = 1;
  bool activation_checkpointing = false;  ///< `full` and `selective` are true
};

enum class LossKind { masked, chunked, fused_linear };
struct LossSection {
  LossKind kind = LossKind::masked;
  std::int64_t chunk_len = 32;  ///< rows of logits at a time, chunked only
};

enum class DatasetKind { squad, messages, mock, tokens };
struct DatasetSection {
  std::string key = "dataset";  ///< the section's own, for messages
  DatasetKind kind = DatasetKind::squad;
  std::string dataset_name = "squad";      ///< squad: file, folder or hub name; `path` wins
  std::string path;                        ///< file or folder; messages: key path_or_dataset_id
  std::optional<std::string> split;        ///< `train`, `validation[:100]`; squad: train if absent
  std::optional<std::string> tokenizer;    ///< null: Recipe::tokenizer, else the model's
  std::optional<std::int64_t> seq_length;  ///< mock: 1024 if null
  std::optional<std::int64_t> limit_dataset_samples;
  Padding padding = Padding::none;  ///< `longest` and true are left to the collator
  bool truncation = false;
  Truncation truncation_side = Truncation::left;  ///< (own) left, right, or context: shorten the context only
  bool append_eos = true;                         ///< (own) supervise an end-of-text token
  AnswerStart answer_start = AnswerStart::answer;  ///< (own) squad: where the targets begin
  std::optional<std::string> chat_template;
  bool mask_history = false, mask_reasoning_content = false, skip_invalid_samples = false;  ///< messages
  std::optional<std::int64_t> shuffle_seed;                                                 ///< messages
  std::int64_t vocab_size = 1024, num_samples = 1'000'000;                                  ///< mock
};

struct PackedSequenceSection {
  std::int64_t packed_sequence_size = 0;  ///< tokens in a pack; 0: no packing
  Packing packing_strategy = Packing::thd;
  std::optional<std::int64_t> max_packs;
  bool drop_long_samples = true;
};

struct DataloaderSection {
  bool shuffle = true;  ///< tokens (rows in order) and validation: false if absent
  bool drop_last = false;
  std::optional<std::int64_t> batch_size;  ///< null: local_batch_size, which is all that training accepts
};

/// Parameters whose name matches the regular expression somewhere; the first matching entry counts.
struct ParamGroupOverride {
  std::string pattern;
  double lr_mult = 1, wd_mult = 1;
};
struct OptimizerSection {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 1e-4;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;  ///< 0 for SGD if absent
  double momentum = 0;         ///< SGD
  bool nesterov = false;       ///< SGD
  std::vector<ParamGroupOverride> param_group_overrides;
  bool no_weight_decay_on_1d = false;  ///< (own) no decay on `*.bias` and one-dimensional parameters
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
  ScheduleUnit unit = ScheduleUnit::steps;  ///< (own) what the *_steps keys of this section count
};

struct ClipSection {
  double max_norm = 1;  ///< absent and null are 1; 0 and .inf (stored as infinity) turn clipping off
};

struct MfuSection {
  std::optional<double> peak_tflops;  ///< of the machine, 10^12 operations a second; null: mfu is not logged
};

/// (own) Generation during validation: SQuAD exact match and F1.
struct EvaluationSection {
  bool squad_metrics = false;
  std::int64_t max_new_tokens = 32;
  std::optional<std::int64_t> limit_samples;  ///< questions to answer; null: all
  bool stop_at_newline = true;
  std::optional<std::string> predictions_path;  ///< JSON of question id to answer, see write_predictions
};

struct Recipe {
  std::string file;           ///< where it was read, for messages
  std::int64_t seed = 42;     ///< from `seed` or `rng.seed`
  bool deterministic = true;  ///< (own) what the CPU does is deterministic either way
  StepSchedulerSection step_scheduler;
  std::optional<ModelSection> model;
  std::optional<std::string> tokenizer;  ///< (own) tokenizer.pretrained_model_name_or_path
  CheckpointSection checkpoint;
  DistributedSection distributed;
  LossSection loss;
  std::optional<DatasetSection> dataset;
  std::map<std::string, DatasetSection> validation_datasets;  ///< validation_dataset: "default"; _x: "x"
  PackedSequenceSection packed_sequence;
  DataloaderSection dataloader;
  DataloaderSection validation_dataloader{.shuffle = false, .drop_last = false, .batch_size = {}};
  std::optional<OptimizerSection> optimizer;
  std::optional<LrSchedulerSection> lr_scheduler;  ///< absent: constant learning rate
  ClipSection clip_grad_norm;
  KernelChoice kernels;  ///< (own) not checked here, see check_kernel_choice()
  MfuSection mfu;
  EvaluationSection evaluation;
  std::vector<std::string> no_effect;  ///< key paths that were present and mean nothing in this build
};

/// What a recipe is loaded for decides which sections it must have.
enum class RecipeUse {
  train,     ///< model, dataset, optimizer; one rank; batch sizes that divide; the model folder exists
  evaluate,  ///< model and a validation dataset; one rank; the model folder exists
  data,      ///< dataset or a validation dataset
  schedule,  ///< step_scheduler.max_steps; sections other than that, optimizer and lr_scheduler are not read
};

/// Reads a recipe and applies overrides "a.b=value" (value in YAML, absent sections are created, numbers
/// index lists). Throws Error naming file, line, key, wish and fact, also for unknown keys and classes.
Recipe load_recipe(const std::filesystem::path& path, const std::vector<std::string>& overrides = {},
                   RecipeUse use = RecipeUse::train);
/// The same for text; `name` stands for the file in messages.
Recipe parse_recipe(const std::string& yaml, const std::string& name,
                    const std::vector<std::string>& overrides = {}, RecipeUse use = RecipeUse::train);

/// The resolved recipe in YAML, defaults filled in, ignored keys left out. Loading it gives the same recipe.
std::string describe(const Recipe& recipe);

/// Throws Error unless the global batch is whole forward passes on `dp` data-parallel ranks; returns how many
/// on each.
std::int64_t grad_accumulation_steps(const Recipe& recipe, std::int64_t dp);

/// The file a squad, messages or tokens dataset reads: `path`, or dataset_name, or in a folder the file of
/// its split. Throws Error saying what to download when only a hub name is known.
std::filesystem::path dataset_file(const DatasetSection& dataset);
/// dataset.tokenizer, else tokenizer, else the folder of the model: a folder with tokenizer.json, or the file
/// itself. Throws Error when there is none.
std::filesystem::path tokenizer_path(const Recipe& recipe, const DatasetSection& dataset);
/// A path to a folder, or the folder of a file: a model may be named by its config.json, a tokenizer by its
/// tokenizer.json.
std::filesystem::path folder_of(const std::filesystem::path& folder_or_file);

}  // namespace nemocube
