#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "train/checkpoint/run_state.h"
#include "train/model_io/model_io.h"
#include "train/optimizer/optimizer.h"
#include "train/recipe/recipe.h"

/// Checkpoints of a run:
///     <checkpoint_dir>/
///       LATEST, LOWEST_VAL                symbolic links to the last one written and the best
///       epoch_<E>_step_<S>/               after step S, which belongs to epoch E
///         model/                          config.json, weights, tokenizer: a usable Hugging Face directory
///         optim/optimizer.safetensors     moments, and the f32 masters of parameters stored in bf16
///         state.json                      RunState
///         losses.json                     loss of each validation set, once they have been validated
///         config.yaml                     the recipe as resolved
///       abandoned/                        checkpoints of a branch that a later run did not go on from
/// A checkpoint is written beside its final name and renamed when every byte is durable, so a directory with
/// the final name is always whole.
namespace nemocube {

class Checkpoints {
 public:
  Checkpoints(const CheckpointSection& section, std::string resolved_recipe);

  /// Writes a checkpoint, moves LATEST, prunes old ones. The first one after a load() sets aside those of
  /// later steps than the loaded one: they belong to a branch that this run has left. One of the same name is
  /// set aside as well. They go to abandoned/, as NAME.1, NAME.2 and so on where NAME is taken. Returns the
  /// directory.
  std::filesystem::path save(const LoadedModel& model, const Optimizer& optimizer, const RunState& state);

  /// Notes the validation losses of a saved step, by name of the set, and lets LOWEST_VAL point at the saved
  /// checkpoint with the lowest finite loss of the set best_metric_key, the earliest of equal ones.
  void note_losses(const std::filesystem::path& checkpoint,
                   const std::map<std::string, double>& losses) const;

  /// What to resume from: the section's restore_from (LATEST, LOWEST_VAL, a name in checkpoint_dir, or a
  /// path; Error when it is not there), else LATEST, else (with a warning) the one of the highest step that
  /// has a state.json, else nothing.
  std::optional<std::filesystem::path> find() const;

  /// Reads a checkpoint into a model and optimizer of the same shape: the same bits as when it was written.
  /// Errors name the file and what is missing, unexpected or of another shape.
  RunState load(const std::filesystem::path& checkpoint, NemotronH& model, Optimizer& optimizer);

 private:
  void set_aside(const std::filesystem::path& checkpoint) const;
  void leave_old_branch(const std::filesystem::path& newest);
  void point_to_lowest() const;
  void prune(const std::filesystem::path& newest) const;
  CheckpointSection section_;
  std::filesystem::path dir_;
  std::string resolved_recipe_;
  std::optional<std::int64_t> branch_point_;  // steps done when loaded; null once this run has saved
};

}  // namespace nemocube
