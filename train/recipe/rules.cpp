#include "train/recipe/rules.h"

#include <limits>
#include <utility>

#include "core/error.h"
#include "core/quote.h"
#include "data/datasets/split.h"
#include "data/hf/hub_cache.h"
#include "train/model_io/find_model.h"
#include "train/recipe/benchmark_rules.h"
#include "train/recipe/diffusion_rules.h"
#include "train/recipe/distributed_rules.h"
#include "train/recipe/files.h"

namespace nemocube::recipe {
namespace {

void model_rules(ModelSection& model, Reading& reading) {
  if (model.config) {
    reading.rule(!reading.given("model.pretrained_model_name_or_path"), {"model.config"},
                 "pretrained_model_name_or_path is given as well; want one of them");
    reading.rule(!reading.given("model._target_") || model.source == ModelSource::config,
                 {"model.config", "model._target_"},
                 "from_pretrained wants pretrained_model_name_or_path instead");
    model.source = ModelSource::config;
    model.path = *std::exchange(model.config, std::nullopt);
  }
  reading.rule(!model.initialisation || model.source == ModelSource::config,
               {"model.initialisation", "model._target_", "model.config"},
               "from_pretrained reads its weights; want from_config");
  if (model.source == ModelSource::config && !model.initialisation) model.initialisation = Initialisation::hf;
}

void backend_rules(BackendSection& backend, Reading& reading) {
  if (!backend.use_deepep) return;
  const bool use = *std::exchange(backend.use_deepep, std::nullopt);
  const auto kind = use ? DispatcherKind::alltoall : DispatcherKind::allgather;
  const char* key =
      reading.given("model.backend.use_deepep") ? "model.backend.use_deepep" : "model.backend.enable_deepep";
  reading.rule(!backend.dispatcher || backend.dispatcher == kind, {key, "model.backend.dispatcher"}, "is ",
               use ? "true" : "false", ", which is the dispatcher ", name_of_choice(kind),
               ", but dispatcher is ", name_of_choice(backend.dispatcher.value_or(kind)),
               "; want one of them, or values that agree");
  backend.dispatcher = kind;
}

void dataset_rules(DatasetSection& s, Reading& reading) {
  if (s.kind == DatasetKind::mock && !s.vocab_size) s.vocab_size = 1024;
  if (s.kind == DatasetKind::megatron && !s.seq_length) s.seq_length = 2048;
  const char* alias = "num_samples_limit";
  if (reading.given(cat(s.key, '.', alias)) && !reading.given(s.key + ".limit_dataset_samples"))
    s.limit_key = alias;
  const char* path_alias = s.kind == DatasetKind::hellaswag ? "path_or_dataset" : "path_or_dataset_id";
  if (reading.given(cat(s.key, '.', path_alias)) && !reading.given(s.key + ".path")) s.path_key = path_alias;
  if (const auto& preserve = s.preserve_tool_argument_mappings) {
    const ToolArguments said = *preserve ? ToolArguments::as_given : ToolArguments::text;
    const std::string other = s.key + ".tool_call_arguments";
    reading.rule(!reading.given(other) || s.tool_call_arguments == said,
                 {s.key + ".preserve_tool_argument_mappings", other}, "is ", *preserve ? "true" : "false",
                 ", but ", other, " is ", name_of_choice(s.tool_call_arguments),
                 "; want one of them, or values that agree");
    s.tool_call_arguments = said;
  }
  const bool mapped = s.kind == DatasetKind::column_mapped;
  reading.rule(mapped || s.kind == DatasetKind::messages || s.path.names.size() < 2,
               {cat(s.key, '.', s.path_key)}, "is a list of ", s.path.names.size(),
               "; want one file or folder, or the class messages or column_mapped");
  reading.rule(!mapped || !s.column_mapping.answer.empty(), {s.key + ".column_mapping.answer"},
               "is missing: want the name of the column with the answers");
  reading.rule(!mapped || s.column_mapping.context || s.column_mapping.question,
               {s.key + ".column_mapping.question", s.key + ".column_mapping.context"},
               "is missing, and so is ", s.key,
               ".column_mapping.context: want the name of a column for the prompt");
  reading.rule(s.padding != Padding::max_length || s.seq_length, {s.key + ".padding", s.key + ".seq_length"},
               "max_length needs seq_length, which is absent");
}

void packing_rules(const Recipe& recipe, Reading& reading) {
  const std::int64_t size = recipe.packed_sequence.packed_sequence_size;
  reading.rule(size == 0 || !recipe.dataset || recipe.dataset->kind != DatasetKind::megatron,
               {"packed_sequence.packed_sequence_size", "dataset._target_"}, "is ", size,
               ", but samples of token files (megatron) are full already; want 0, and dataset.seq_length for "
               "their length");
}

void optimizer_rules(OptimizerSection& s, Reading& reading) {
  if (s.adam_w_mode && s.kind != OptimizerKind::sgd)
    s.kind = *s.adam_w_mode ? OptimizerKind::adamw : OptimizerKind::adam;
  if (s.kind == OptimizerKind::sgd && !reading.given("optimizer.weight_decay")) s.weight_decay = 0;
  reading.rule(!s.nesterov || s.momentum > 0, {"optimizer.nesterov", "optimizer.momentum"},
               "needs a momentum above 0");
  for (std::size_t i = 0; i < s.param_group_overrides.size(); ++i)
    reading.rule(!s.param_group_overrides[i].pattern.empty(),
                 {cat("optimizer.param_group_overrides.", i, ".pattern")},
                 "want a regular expression for parameter names, found none");
}

void repair_rules(const Recipe& recipe, Reading& reading) {
  const bool repairs = recipe.embedding_row_repair && recipe.embedding_row_repair->enabled;
  reading.rule(
      !repairs || !recipe.peft, {"embedding_row_repair", "peft"},
      "changes the model, and checkpoints of a run with `peft` hold the adapters alone; want one of them");
  reading.rule(
      !repairs || recipe.checkpoint.save_frozen, {"embedding_row_repair", "checkpoint.save_frozen"},
      "changes the model, of which checkpoints leave a part to its directory; want save_frozen true");
}

void peft_rules(const Recipe& recipe, Reading& reading) {
  const PeftSection& s = *recipe.peft;
  const bool target = !s.target_modules.empty(), exclude = !s.exclude_modules.empty();
  reading.rule(!target || !exclude, {"peft.target_modules", "peft.exclude_modules"},
               "is given, and so is peft.exclude_modules; want one of them");
  reading.rule(!s.match_all_linear || (!target && !exclude),
               {"peft.match_all_linear", target ? "peft.target_modules" : "peft.exclude_modules"},
               "is true, and ", target ? "peft.target_modules" : "peft.exclude_modules",
               " is given; want one of them");
  if (s.adapter_path)
    for (const char* key : {"dim", "alpha", "use_rslora", "target_modules", "exclude_modules",
                            "match_all_linear", "moe_rank_scaling", "lora_A_init"})
      if (const std::string path = cat("peft.", key); reading.given(path)) reading.no_effect.push_back(path);
  reading.rule(!recipe.model || recipe.model->moe.expert_bias_update_rate == 0,
               {"model.moe.expert_bias_update_rate", "peft"},
               "moves biases of the model, which a run with `peft` leaves as it is; want 0");
}

bool is_true(const Reading& reading, const char* path) {
  bool flag = false;
  if (reading.given(path)) read(Place{*reading.find(path), path, path}, flag, any);
  return flag;
}

void want_section(bool there, const char* section, Reading& reading) {
  if (!there && !reading.any_faulty({section}))
    reading.problem(nullptr, section, cat(reading.file(), ": the section '", section, "' is missing"));
}

/// A model may also be named by a checkpoint or by the folder of a run. From here on the recipe names the
/// model found there, because LATEST moves while that run goes on.
void find_model_of_run(ModelSection& model, const std::string& key, Reading& reading) {
  const std::filesystem::path path = model.path;
  std::error_code unclear;  // what cannot be reached has its own message
  const bool is_config_file = model.source == ModelSource::config && std::filesystem::is_regular_file(path);
  if (is_config_file || std::filesystem::exists(path / "config.json", unclear) || unclear) return;
  reading.attempt(key, [&] {
    try {
      model.path = find_model(path).string();
    } catch (const Error& error) {
      fail(reading.where(key), ": ", error.what());
    }
  });
}

void want_model(Recipe& recipe, Reading& reading) {
  want_section(recipe.model.has_value(), "model", reading);
  if (!recipe.model) return;
  std::string& path = recipe.model->path;
  const std::string key =
      reading.find("model.config") != nullptr && recipe.model->source == ModelSource::config
          ? "model.config"
          : "model.pretrained_model_name_or_path";
  reading.rule(!path.empty(), {key}, "is missing");
  reading.attempt(key, [&] { path = path_or_cached(path, HubKind::model).string(); });
  std::error_code unclear;  // what is there and cannot be reached has its own message
  const bool there = std::filesystem::exists(path, unclear);
  if (there) find_model_of_run(*recipe.model, key, reading);
  if (path.empty() || there || unclear) return;
  if (looks_like_hub_name(path))
    reading.rule(
        false, {key}, quote(path), " is not a folder here", not_in_cache(path, HubKind::model),
        ", and nothing is downloaded at run time. Download the model of that name from "
        "the Hugging Face Hub (config.json, *.safetensors, tokenizer files), for example with `hf download ",
        excerpt(path), "`, or name the folder that holds it");
  reading.rule(false, {key}, does_not_exist(path), "; want a folder with config.json and *.safetensors");
}

void want_whole_batches(const Recipe& recipe, Reading& reading) {
  const std::string global = "step_scheduler.global_batch_size", local = "step_scheduler.local_batch_size";
  if (!reading.any_faulty({global, local})) reading.attempt(global, [&] { microbatches_of_step(recipe, 1); });
  const auto& batch = recipe.dataloader.batch_size;
  reading.rule(!batch || *batch == recipe.step_scheduler.local_batch_size, {"dataloader.batch_size", local},
               "is ", batch.value_or(0), ", which differs from ", local, " = ",
               recipe.step_scheduler.local_batch_size);
}

void want_kernels(const Recipe& recipe, Reading& reading) {
  for (const auto& [op, variant] : recipe.kernels.by_op) {
    const std::string path = "kernels." + op;
    reading.attempt(path, [&] { check_kernel_choice({{{op, variant}}}); });
  }
}

/// Checks that the files of a section exist; their contents are checked when they are read.
void want_files(const Recipe& recipe, const DatasetSection& s, Reading& reading) {
  // `find` gets what messages about the key begin with.
  const auto look = [&](const std::string& key, auto&& find) {
    if (reading.any_faulty({s.key + "._target_", s.key + ".split", key})) return;
    reading.attempt(key, [&] { find(reading.where(key)); });
  };
  if (s.kind == DatasetKind::mock) return;
  if (s.kind == DatasetKind::megatron) {
    look(s.key + ".paths", [&](const std::string& where) { token_files(s, where); });
    return;
  }
  if (s.split)
    look(s.key + ".split", [&](const std::string& where) {
      try {
        DatasetSplit::parse(*s.split);
      } catch (const Error& error) {
        fail(where, ": ", error.what());
      }
    });
  look(dataset_file_key(s), [&](const std::string& where) { dataset_files(s, where); });
  if (s.kind == DatasetKind::tokens || !(s.tokenizer || recipe.tokenizer)) return;
  std::string key = tokenizer_key(recipe, s);
  const std::string in_section = key + ".pretrained_model_name_or_path";
  if (reading.find(in_section) != nullptr) key = in_section;
  look(key, [&](const std::string& where) { existing_tokenizer_path(recipe, s, where); });
}

void want_validation_files(const Recipe& recipe, Reading& reading) {
  for (const auto& [name, section] : recipe.validation_datasets) want_files(recipe, section, reading);
}

void want_early_stopping(const Recipe& recipe, const EarlyStoppingSection& s, Reading& reading) {
  reading.rule(s.patience.has_value(), {"early_stopping.patience"},
               "is missing; want how many validations in a row without a lower loss end the run");
  reading.rule(!recipe.validation_datasets.empty(), {"early_stopping", "validation_dataset"},
               "needs a validation loss; want a section validation_dataset as well");
  reading.rule(recipe.step_scheduler.val_every_steps.has_value(),
               {"early_stopping", "step_scheduler.val_every_steps"},
               "counts validations; want step_scheduler.val_every_steps as well");
  if (recipe.validation_datasets.empty() || recipe.validation_datasets.contains(s.metric)) return;
  std::vector<std::string> names;
  for (const auto& [name, section] : recipe.validation_datasets) names.push_back(name);
  reading.rule(false, {"early_stopping.metric", "validation_dataset_" + s.metric}, "is ", excerpt(s.metric),
               ", and there is no validation set of that name; want ", joined(names));
}

/// `data`: whether the files of the data are wanted too.
void want_training(const Recipe& recipe, Reading& reading, bool data) {
  want_section(recipe.dataset.has_value(), "dataset", reading);
  want_section(recipe.optimizer.has_value(), "optimizer", reading);
  if (recipe.dataset && data) want_files(recipe, *recipe.dataset, reading);
  want_whole_batches(recipe, reading);
  const std::string& best = recipe.checkpoint.best_metric_key;
  reading.rule(best == "default" || recipe.validation_datasets.contains(best),
               {"checkpoint.best_metric_key", "validation_dataset_" + best},
               "there is no section validation_dataset_", excerpt(best));
  if (recipe.early_stopping) want_early_stopping(recipe, *recipe.early_stopping, reading);
}

}  // namespace

void apply_rules(Recipe& recipe, Reading& reading, RecipeUse use) {
  if (!recipe.deterministic) reading.no_effect.push_back("deterministic");
  if (recipe.model) {
    model_rules(*recipe.model, reading);
    backend_rules(recipe.model->backend, reading);
  }
  reading.rule(!recipe.checkpoint.checkpoint_dir.empty(), {"checkpoint.checkpoint_dir"},
               "is empty; want a folder");
  distributed_rules(recipe.distributed, reading);
  dist_env_rules(recipe.dist_env, reading);
  const bool own_vocabulary = recipe.dataset && recipe.dataset->vocab_size;
  if (recipe.dataset) dataset_rules(*recipe.dataset, reading);
  for (auto& [name, section] : recipe.validation_datasets) dataset_rules(section, reading);
  const bool ordered = recipe.dataset && (recipe.dataset->kind == DatasetKind::tokens ||
                                          recipe.dataset->kind == DatasetKind::megatron);
  if (ordered && !reading.given("dataloader.shuffle")) recipe.dataloader.shuffle = false;
  benchmark_rules(recipe, reading, use);
  diffusion_rules(recipe, reading, use);
  // Validation takes every row, in order, whatever the recipe says.
  if (recipe.validation_dataloader.shuffle) reading.no_effect.push_back("validation_dataloader.shuffle");
  if (recipe.validation_dataloader.drop_last) reading.no_effect.push_back("validation_dataloader.drop_last");
  packing_rules(recipe, reading);
  if (recipe.peft) peft_rules(recipe, reading);
  repair_rules(recipe, reading);
  if (!recipe.checkpoint.save_frozen && (recipe.freeze.empty() || recipe.peft))
    reading.no_effect.emplace_back("checkpoint.save_frozen");
  if (recipe.optimizer) optimizer_rules(*recipe.optimizer, reading);
  const char* stored = "lr_scheduler.use_checkpoint_opt_param_scheduler";
  const char* overriding = "lr_scheduler.override_opt_param_scheduler";
  reading.rule(!is_true(reading, stored) || !is_true(reading, overriding), {overriding, stored},
               "use_checkpoint_opt_param_scheduler is true as well; want one of them");
  if (recipe.clip_grad_norm.max_norm == 0)
    recipe.clip_grad_norm.max_norm = std::numeric_limits<double>::infinity();

  switch (use) {
    case RecipeUse::train:
    case RecipeUse::plan:
      want_pipeline(recipe.distributed, reading);
      want_training(recipe, reading, use == RecipeUse::train);
      want_model(recipe, reading);
      if (is_benchmark(recipe) && !own_vocabulary) take_vocabulary_of_model(recipe, reading);
      if (use == RecipeUse::train) want_validation_files(recipe, reading);
      want_kernels(recipe, reading);
      break;
    case RecipeUse::evaluate:
      want_pipeline(recipe.distributed, reading);
      want_model(recipe, reading);
      want_section(!recipe.validation_datasets.empty(), "validation_dataset", reading);
      want_validation_files(recipe, reading);
      want_kernels(recipe, reading);
      break;
    case RecipeUse::data:
      want_section(recipe.dataset || !recipe.validation_datasets.empty(), "dataset", reading);
      break;
    case RecipeUse::ranks:
      want_pipeline(recipe.distributed, reading);
      break;
    case RecipeUse::schedule:
      reading.rule(recipe.step_scheduler.max_steps.has_value(), {"step_scheduler.max_steps"},
                   "is missing; a schedule is made without the data, so this key says how long it is (--set "
                   "step_scheduler.max_steps=N)");
      break;
  }
}

}  // namespace nemocube::recipe
