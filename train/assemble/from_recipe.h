#pragma once
#include "data/loader/loader.h"
#include "train/checkpoint/run_state.h"
#include "train/finetune/adapters.h"
#include "train/model_io/model_io.h"
#include "train/optimizer/optimizer.h"
#include "train/ranks/run_ranks.h"
#include "train/recipe/environment.h"

/// Turns the sections of a training recipe into the objects and options of the program.
namespace nemocube {

CommOptions comm_options(const Recipe& recipe);
/// Settings of a run from keys and environment variables (resolve_environment()), with a line in the log for
/// each note. Sets the variables that the recipe asks for, and in `recipe` the kernels that the settings
/// choose. To be called before other threads run.
ParallelSettings settle(Recipe& recipe);
/// device_of_rank() with these keys of the recipe: `share_device`, `dist_env.backend`,
/// `debug.synchronise_launches`, `allow_tf32`.
Device recipe_device(const Recipe& recipe, Device chosen, World& world);
/// Whether ranks of CUDA devices exchange tensors by NCCL, by two keys of the
/// recipe: `dist_env.backend`, `share_device`.
bool exchanges_by_nccl(const Recipe& recipe);
OptimizerOptions optimizer_options(const OptimizerSection& section);
LoaderOptions loader_options(const Recipe& recipe, std::int64_t dp_rank, std::int64_t dp_size);
BatchShape batch_shape(const Recipe& recipe);
/// The dtype that weights are stored in: from the recipe, else from config.json, else f32. Throws Error when
/// distributed.mp_policy asks for another dtype of computation, or another one of reductions than the
/// accumulation dtype.
DType weight_dtype(const Recipe& recipe, const ModelConfig& config);
/// The adapters of this model that the recipe's section `peft` asks for: by its patterns, or as in
/// peft.adapter_path. pre: the section is there.
ChosenAdapters recipe_adapters(const Recipe& recipe, const ModelSetup& setup);
/// The recipe's model, with its adapters, frozen tensors and trained multi-token
/// prediction. `source` is the recipe's model.
ModelSetup recipe_setup(const Recipe& recipe, const OpenedModel& source);
/// The model with its weights, its loss chunks and the coefficients of its routers' auxiliary losses, divided
/// among the ranks. Of several ranks all call together. `config`: of config_of_model().
LoadedModel recipe_model(const Recipe& recipe, const ModelConfig& config, const RunRanks& ranks);

}  // namespace nemocube
