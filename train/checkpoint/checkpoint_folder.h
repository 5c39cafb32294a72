#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/files/staging_directory.h"
#include "train/checkpoint/run_state.h"

/// The names in a checkpoint directory: which checkpoints exist, which one was written last, which belong to
/// a branch that the run has left. This class only renames, and removes only directories without a final
/// name. After every rename each checkpoint is still complete under some name.
namespace nemocube {

/// The validation losses, by name of the set, that the logs hold for the step of a published checkpoint with
/// this serial.
using LoggedLosses = std::function<std::map<std::string, double>(const std::filesystem::path& checkpoint,
                                                                 std::int64_t serial)>;

class CheckpointFolder {
 public:
  /// best_metric_key: the validation set whose loss selects LOWEST_VAL.
  CheckpointFolder(std::filesystem::path dir, std::string best_metric_key);

  /// Name of a temporary file by which ranks check that they share the directory.
  static constexpr const char* token_name = "ranks";

  const std::filesystem::path& dir() const { return dir_; }
  static std::string name_of(const RunState& state);                      ///< epoch_E_step_S
  static std::int64_t steps_in(const std::filesystem::path& checkpoint);  ///< S + 1; 0 for another name

  /// The folders named epoch_E_step_S, by rising S.
  std::vector<std::filesystem::path> published() const;
  /// The published() checkpoints written after more than `steps` steps.
  std::vector<std::filesystem::path> later_than(std::int64_t steps) const;
  /// The checkpoint with the highest serial among those with a state.json. If none has a serial: the
  /// checkpoint that LATEST points to, else that of the highest step. If none has a state.json: the likeliest
  /// candidate, whose reading then reports the fault.
  std::optional<std::filesystem::path> newest() const;
  /// The serial of the next checkpoint. `parent_serial` belongs to the loaded checkpoint, which may lie in
  /// another directory.
  std::int64_t next_serial(std::int64_t parent_serial) const;

  /// Renames a complete staged checkpoint to its final name and points LATEST to it. An older checkpoint of
  /// the same name is moved to abandoned/, and so are checkpoints of left branches, of steps after the
  /// parent's. Where abandoned/NAME is taken, the names become NAME.1, NAME.2 and so on.
  void publish(StagingDirectory& staging, const std::filesystem::path& target, const Origin& origin) const;

  /// Completes the work of a killed process: renames, losses that were logged and not yet noted in the newest
  /// checkpoint, and links. Removes the process's temporary files. No other run may be using the directory.
  void recover(const LoggedLosses& logged = {}) const;

  /// Removes the oldest checkpoints until `keep` are left, but never `newest` and never the one
  /// with the lowest loss of all others. LOWEST_VAL is not used for this: it depends on the loss
  /// of `newest`, which is noted after the save has pruned. So every further prune() for the
  /// same `newest` keeps the same checkpoints.
  void prune(std::int64_t keep, const std::filesystem::path& newest) const;

  /// Writes losses.json of a checkpoint: losses by name of the validation set.
  void note_losses(const std::filesystem::path& checkpoint,
                   const std::map<std::string, double>& losses) const;

 private:
  void settle(const std::filesystem::path& newest, const Origin& origin) const;
  std::filesystem::path lowest_of(const std::vector<std::filesystem::path>& checkpoints) const;
  void note_logged(const std::filesystem::path& checkpoint, const LoggedLosses& logged) const;
  void set_aside(const std::filesystem::path& checkpoint) const;
  void point_to_lowest() const;
  std::filesystem::path dir_;
  std::string best_metric_key_;
};

}  // namespace nemocube
