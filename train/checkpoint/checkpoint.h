#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "data/loader/loader.h"
#include "train/model_io/model_io.h"
#include "train/optimizer/optimizer.h"
#include "train/recipe/recipe.h"

/// Checkpoints of a run:
///     <checkpoint_dir>/
///       LATEST, LOWEST_VAL                symbolic links to the newest and the best
///       epoch_<E>_step_<S>/
///         model/                          config.json, weights, tokenizer: a usable Hugging Face directory
///         optim/optimizer.safetensors     moments, and the f32 masters of parameters stored in bf16
///         state.json                      RunState
///         config.yaml                     the recipe as resolved
/// A checkpoint is written beside its final name and renamed when every byte is durable, so a directory with
/// the final name is always whole.
namespace nemocube {

/// Everything a run needs to go on, besides tensors. Random draws depend on seeds and counters alone.
struct RunState {
  std::int64_t step = 0;             ///< steps done
  std::int64_t scheduler_steps = 0;  ///< progress of the learning-rate schedule: skipped steps do not count
  std::int64_t optimizer_steps = 0;
  std::int64_t samples = 0;  ///< consumed, skipped steps included
  std::int64_t skipped_steps = 0;
  std::int64_t nonfinite_in_a_row = 0;
  std::optional<double> lowest_validation_loss;
  LoaderState loader;
};

class Checkpoints {
 public:
  Checkpoints(const CheckpointSection& section, std::string resolved_recipe);

  /// Writes a checkpoint, moves LATEST (and LOWEST_VAL when `lowest`), prunes old ones. Returns its
  /// directory.
  std::filesystem::path save(const LoadedModel& model, const Optimizer& optimizer, const RunState& state,
                             bool lowest) const;

  /// What to resume from: the section's restore_from (LATEST, LOWEST_VAL, a name in checkpoint_dir, or a
  /// path; Error when it is not there), else the newest checkpoint in checkpoint_dir, else nothing.
  std::optional<std::filesystem::path> find() const;

  /// Reads a checkpoint into a model and optimizer of the same shape: the same bits as when it was written.
  /// Errors name the file and what is missing, unexpected or of another shape.
  RunState load(const std::filesystem::path& checkpoint, NemotronH& model, Optimizer& optimizer) const;

 private:
  void prune(const std::filesystem::path& newest) const;
  CheckpointSection section_;
  std::filesystem::path dir_;
  std::string resolved_recipe_;
};

}  // namespace nemocube
