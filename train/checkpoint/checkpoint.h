#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "train/checkpoint/checkpoint_folder.h"
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
///         state.json                      RunState and Origin
///         losses.json                     loss of each validation set, once they have been validated
///         config.yaml                     the recipe as resolved
///         checksums.json                  length and CRC-32C of each of these files
///       abandoned/                        checkpoints and logs of branches that a later run did not go on from
/// A checkpoint is written beside its final name and renamed when every byte is durable, so a directory with
/// the final name is always whole.
namespace nemocube {

class Checkpoints {
 public:
  Checkpoints(const CheckpointSection& section, std::string resolved_recipe);

  /// Writes a checkpoint, moves LATEST, prunes old ones. The first one after a load() sets aside those of
  /// later steps than the loaded one: they belong to a branch that this run has left. Returns the directory.
  std::filesystem::path save(const LoadedModel& model, const Optimizer& optimizer, const RunState& state);

  /// Notes the validation losses of a saved step, by name of the set, and lets LOWEST_VAL point at the saved
  /// checkpoint with the lowest finite loss of the set best_metric_key, the earliest of equal ones.
  void note_losses(const std::filesystem::path& checkpoint,
                   const std::map<std::string, double>& losses) const {
    folder_.note_losses(checkpoint, losses);
  }

  /// Completes what a killed run had begun to publish and removes what it left. Only for a run that holds the
  /// lock of the directory (train/loop/run_lock.h).
  void recover() const { folder_.recover(); }

  /// What to resume from: the section's restore_from (LATEST, LOWEST_VAL, a name in checkpoint_dir, or a
  /// path; Error when it is not there), else CheckpointFolder::newest().
  std::optional<std::filesystem::path> find() const;

  /// Reads a checkpoint into a model and optimizer of the same shape: the same bits as when it was written.
  /// Errors name the file and what is damaged, missing, unexpected or of another shape; of a damaged checkpoint
  /// also the newest intact one before it.
  RunState load(const std::filesystem::path& checkpoint, NemotronH& model, Optimizer& optimizer);

  /// How many checkpoints the next save() sets aside.
  std::size_t to_be_abandoned() const;
  /// Origin::serial of the next checkpoint.
  std::int64_t next_serial() const { return folder_.next_serial(parent_.serial); }

 private:
  void check_intact(const std::filesystem::path& checkpoint) const;
  CheckpointSection section_;
  CheckpointFolder folder_;
  std::string resolved_recipe_;
  struct Parent {
    std::string name;
    std::int64_t steps = 0, serial = 0;
  } parent_;  // the checkpoint loaded or saved last
};

}  // namespace nemocube
