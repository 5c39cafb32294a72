#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "data/loader/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "train/assemble/run_batches.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/run_state.h"
#include "train/model_io/model_io.h"
#include "train/optimizer/optimizer.h"
#include "train/ranks/run_ranks.h"
#include "train/recipe/recipe.h"
#include "train/run/run_lock.h"
#include "train/run/tensorboard_folder.h"
#include "train/run/validation.h"
#include "train/schedule/lr_schedule.h"
#include "train/schedule/step_schedule.h"
#include "train/step/step_replay.h"

namespace nemocube {

/// A run up to its first step: objects made from the recipe, with the contents of the checkpoint that the run
/// resumes from. Members stand in the order in which they are made.
class StartedRun {
 public:
  /// All ranks of the world call it, each with its device. `config`: of the recipe's model.
  /// The log names the checkpoint to resume from, and the differences to the run before.
  /// Throws Error where another run is at work in the checkpoint directory or in the folder
  /// of event files, where the checkpoint to resume from does not fit the recipe or is
  /// damaged, and like the makers of the members.
  StartedRun(Recipe wanted, const ModelConfig& config, const ParallelSettings& settings, World& world,
             Device device);
  StartedRun(const StartedRun&) = delete;
  StartedRun& operator=(const StartedRun&) = delete;

  /// Progress of the learning-rate schedule at the next step.
  std::int64_t schedule_position() const { return state.scheduler_steps * schedule.options().per_step; }
  /// For StorageTime.
  std::int64_t most_checkpoint_bytes() const {
    return checkpoint_bytes(loaded.model->setup(), loaded.model->dtype());
  }

  Recipe recipe;  ///< with the moment of the run
  RunRanks ranks;
  std::unique_ptr<RunLock> lock;                   ///< on rank 0
  std::unique_ptr<TensorboardFolder> tensorboard;  ///< on rank 0 of a run that writes event files
  LoadedModel loaded;
  Checkpoints checkpoints;
  const std::optional<std::filesystem::path> from;  ///< the checkpoint that the run resumes from
  std::optional<Tokenizer> tokenizer;
  Loader loader;
  StepSchedule steps;
  LrSchedule schedule;
  Optimizer optimizer;
  Validation validation;
  std::optional<Corruption> corruption;  ///< of the rows of a step, where the model learns to denoise
  std::optional<StepReplay> replay;      ///< where steps are to use CUDA graphs
  BatchCapacity capacity;                ///< of microbatches then
  std::string end_of_turn_warning;       ///< of carry_files()
  RunState state;

 private:
  std::optional<std::filesystem::path> find_checkpoint();
  std::shared_ptr<const Dataset> training_data() const;
  bool keeps_place() const;
  void note_rows();
  void resume();
  void take_data_position(const RunState& own);
  void keep_schedule();
  void warn_before_memory_runs_out() const;
};

}  // namespace nemocube
