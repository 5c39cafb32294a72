#include "train/assemble/from_recipe.h"

#include "core/cuda/runtime.h"
#include "core/log.h"
#include "data/hf/frozen_weights.h"
#include "data/peft/peft_directory.h"
#include "ops/matmul/matmul.h"
#include "train/assemble/diffusion_training.h"
#include "train/assemble/mtp_training.h"
#include "train/device/device_of_rank.h"
#include "train/finetune/adapters.h"
#include "train/finetune/embedding_repair.h"
#include "train/finetune/frozen.h"
#include "train/model_io/adapter_io.h"
#include "train/recipe/files.h"

namespace nemocube {

CommOptions comm_options(const Recipe& recipe) {
  CommOptions o;
  o.timeout_seconds = recipe.dist_env.timeout_minutes * 60;
  o.check_collectives = recipe.debug.check_collectives;
  o.deterministic_collectives = recipe.deterministic_collectives;
  return o;
}

ParallelSettings settle(Recipe& recipe) {
  const Environment environment = resolve_environment(recipe);
  for (const std::string& note : environment.notes) log_info(note);
  set_variables(environment);
  if (recipe.distributed.tp_size > 1 && environment.settings.tp_cross_entropy == TpCrossEntropy::native)
    recipe.kernels.by_op["cross_entropy"] = "plain";
  if (recipe.distributed.tp_size > 1 && environment.settings.tp_cross_entropy == TpCrossEntropy::fused)
    recipe.kernels.by_op["cross_entropy"] = "fused";
  return environment.settings;
}

namespace {
bool over_mpi(const Recipe& recipe) {
  const std::optional<CommBackend> backend = recipe.dist_env.backend;
  return backend == CommBackend::mpi || backend == CommBackend::gloo;
}
}  // namespace

bool exchanges_by_nccl(const Recipe& recipe) { return !over_mpi(recipe) && !recipe.share_device; }

Device recipe_device(const Recipe& recipe, Device chosen, World& world) {
  const Device device = device_of_rank(chosen, world, {recipe.share_device, over_mpi(recipe)});
  if (device.is_cuda()) {
    cuda::synchronise_launches(recipe.debug.synchronise_launches);
    cuda::allow_tf32(recipe.allow_tf32);
  }
  return device;
}

OptimizerOptions optimizer_options(const OptimizerSection& section) {
  OptimizerOptions o;
  o.kind = section.kind;
  o.beta1 = section.betas[0];
  o.beta2 = section.betas[1];
  o.eps = section.eps;
  o.momentum = section.momentum;
  o.nesterov = section.nesterov;
  return o;
}

DType weight_dtype(const Recipe& recipe, const ModelConfig& config) {
  const DType dtype = recipe.model->dtype.value_or(config.dtype.value_or(DType::f32));
  const DType param = recipe.distributed.mp_policy.param_dtype.value_or(dtype);
  require(param == dtype, recipe.file, ": distributed.mp_policy.param_dtype is ", param,
          ", but the weights are ", dtype,
          ", and so is what is computed with them; want the same, or no param_dtype. With model.torch_dtype: "
          "bf16 the optimizer still has f32 masters");
  const DType sum = accumulate_dtype(dtype), reduce = recipe.distributed.mp_policy.reduce_dtype.value_or(sum);
  require(reduce == sum, recipe.file, ": distributed.mp_policy.reduce_dtype is ", reduce,
          ", but gradients of ", dtype, " weights are summed in ", sum, "; want that, or no reduce_dtype");
  if (recipe.peft && recipe.peft->lora_dtype)
    require(*recipe.peft->lora_dtype == dtype || *recipe.peft->lora_dtype == DType::f32, recipe.file,
            ": peft.lora_dtype is ", *recipe.peft->lora_dtype, ", but the weights are ", dtype,
            "; want that, f32 or null");
  return dtype;
}

ChosenAdapters recipe_adapters(const Recipe& recipe, const ModelSetup& setup) {
  const PeftSection& peft = *recipe.peft;
  const auto seed = static_cast<std::uint64_t>(recipe.seed);
  if (!peft.adapter_path) return choose_adapters(setup, peft, seed);
  const std::filesystem::path dir = model_and_adapter(recipe).adapter;
  ChosenAdapters chosen{PeftDirectory(dir, setup).adapters(), {}, {}};
  const bool f32 = chosen.adapters.f32;
  apply_settings(chosen.adapters, peft, seed);
  if (!peft.lora_dtype) chosen.adapters.f32 = f32;  // as in the file
  chosen.lines.push_back(cat("peft.adapter_path: ", dir.string(), " has adapters of ",
                             counted(std::ssize(chosen.adapters.modules), "weight")));
  if (std::string warning = warning_of_peft(setup, peft, chosen.adapters); !warning.empty())
    chosen.warnings.push_back(std::move(warning));
  return chosen;
}

namespace {
/// Training needs numbers that it can change, so weights that are to stay codes cannot be read.
void want_dequantized(const Recipe& recipe, const OpenedModel& source) {
  if (recipe.checkpoint.dequantize_base_checkpoint.value_or(true) ||
      recipe.model->source != ModelSource::pretrained)
    return;
  const std::optional<std::string> tensor = source.weights().quantized();
  require(!tensor, recipe.file,
          ": checkpoint.dequantize_base_checkpoint is false, but the model has quantized weights (",
          tensor.value_or(""),
          "), and codes with scales cannot be trained or computed with here; want true or null, which read "
          "them as the "
          "numbers they stand for");
}
}  // namespace

ModelSetup recipe_setup(const Recipe& recipe, const OpenedModel& source) {
  ModelSetup setup(source.config());
  want_dequantized(recipe, source);
  setup.train_mtp(mtp_training(recipe, source));
  ModelChoices& choices = setup.choices;
  choices.noise = {recipe.neftune.alpha, static_cast<std::uint64_t>(recipe.seed)};
  choices.diffusion = diffusion_training(recipe, setup.config);
  if (recipe.peft) {
    choices.lora = recipe_adapters(recipe, setup).adapters;
    choices.frozen = base_parameters(setup);
  }
  choices.frozen.merge(frozen_tensors(setup, recipe.freeze).names);
  require(!recipe.peft || trains_adapters(setup), recipe.file,
          ": freeze: the patterns fit every adapted module, and nothing is left to train");
  return setup;
}

LoadedModel recipe_model(const Recipe& recipe, const ModelConfig& config, const RunRanks& ranks) {
  const ModelSection& section = *recipe.model;
  const OpenedModel source(section.path, config);
  const ModelSetup setup = recipe_setup(recipe, source);
  const auto seed = static_cast<std::uint64_t>(recipe.seed);
  const Finetuning finetuning{
      .choices = setup.choices, .adapter = model_and_adapter(recipe).adapter, .seed = seed};
  const Residence place = ranks.place_for(setup);
  LoadedModel loaded = section.source == ModelSource::pretrained
                           ? load_model(source, section.dtype, place, finetuning)
                           : make_model(source, section.dtype, seed, place,
                                        section.initialisation.value_or(Initialisation::hf), finetuning);
  require(recipe.checkpoint.save_frozen || recipe.freeze.empty() || recipe.peft || !loaded.base.empty(),
          recipe.file,
          ": checkpoint.save_frozen is false, but the weights of the model are fresh, and no directory has "
          "those that `freeze` names; want true");
  require(recipe.checkpoint.save_frozen || recipe.freeze.empty() || !read_frozen_weights(loaded.base),
          recipe.file, ": checkpoint.save_frozen is false, but ", loaded.base.string(),
          " leaves weights to another directory "
          "itself; want true, or a whole model (nemocube convert writes one)");
  if (const auto& repair = recipe.embedding_row_repair; repair && repair->enabled) {
    const std::int64_t rows =
        repair_embeddings(*loaded.model, {repair->min_norm, repair->max_rows}, &loaded.parallel->all());
    if (ranks.first())
      log_info("embedding_row_repair: ", counted(rows, "row"),
               " of the embeddings replaced by those of lm_head");
  }
  if (recipe.peft) loaded.adapter_settings = automodel_peft_config(*recipe.peft);
  loaded.parallel->data().spread_values();
  Stack& model = *loaded.model;
  weight_dtype(recipe, model.config());  // throws where the recipe asks for others
  model.activation_checkpointing = recipe.distributed.activation_checkpointing;
  if (recipe.loss.kind == LossKind::chunked) model.loss_chunk_rows = recipe.loss.chunk_len;
  for (MoeMixer* moe : model.moe_layers()) {
    require(section.moe.expert_bias_update_rate == 0 || moe->correction_bias(),
            "model.moe.expert_bias_update_rate is ", section.moe.expert_bias_update_rate,
            ", but the routers of this model have no bias to balance them by; want 0, and for balance an "
            "auxiliary loss such as model.moe.aux_loss_coeff");
    moe->router().balanced = section.backend.fake_balanced_gate;
    moe->router().aux_loss_coef = section.moe.aux_loss_coeff;
    moe->router().seq_aux_loss_coef = section.moe.seq_aux_loss_coeff;
    moe->router().global_aux_loss_coef = section.moe.global_aux_loss_coeff;
    moe->router().z_loss_coef = section.moe.z_loss_coeff;
  }
  return loaded;
}

LoaderOptions loader_options(const Recipe& recipe, std::int64_t dp_rank, std::int64_t dp_size) {
  LoaderOptions o;
  o.batch_size = recipe.distributed.pipeline ? recipe.distributed.pipeline->pp_microbatch_size
                                             : recipe.step_scheduler.local_batch_size;
  o.shuffle = recipe.dataloader.shuffle;
  o.drop_last = recipe.dataloader.drop_last;
  o.seed = static_cast<std::uint64_t>(recipe.seed);
  o.dp_rank = dp_rank;
  o.dp_size = dp_size;
  return o;
}

BatchShape batch_shape(const Recipe& recipe) {
  return {recipe.step_scheduler.global_batch_size, recipe.dataset->seq_length.value_or(0),
          recipe.packed_sequence.packed_sequence_size};
}

}  // namespace nemocube
