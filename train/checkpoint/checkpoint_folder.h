#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/files/staging_directory.h"
#include "train/checkpoint/run_state.h"

/// The names in a checkpoint directory: which checkpoints there are, which one was written last, which are of
/// a branch that the run has left. Only renames happen here, each of which leaves every checkpoint whole under
/// some name, and removals of what has no final name any more.
namespace nemocube {

class CheckpointFolder {
 public:
  /// best_metric_key: the validation set whose loss decides about LOWEST_VAL.
  CheckpointFolder(std::filesystem::path dir, std::string best_metric_key);

  const std::filesystem::path& dir() const { return dir_; }
  static std::string name_of(const RunState& state);                      ///< epoch_E_step_S
  static std::int64_t steps_in(const std::filesystem::path& checkpoint);  ///< S + 1; 0 for another name

  /// The folders named epoch_E_step_S, by rising S.
  std::vector<std::filesystem::path> published() const;
  /// Those of them after which more than `steps` steps were done.
  std::vector<std::filesystem::path> later_than(std::int64_t steps) const;
  /// The one written last that has a state.json: highest serial. Of those without serial the one that LATEST
  /// points to, else the highest step. Where none has a state.json the likeliest, so that reading it says what
  /// is wrong.
  std::optional<std::filesystem::path> newest() const;
  /// What the next checkpoint gets; `parent_serial` is that of the one loaded, which may lie elsewhere.
  std::int64_t next_serial(std::int64_t parent_serial) const;

  /// Gives a whole staged checkpoint its name (one that has the name already is set aside), lets LATEST point
  /// there, and sets aside the later ones of other branches: those of steps after its parent's. They go to
  /// abandoned/, as NAME.1, NAME.2 and so on where NAME is taken.
  void publish(StagingDirectory& staging, const std::filesystem::path& target, const Origin& origin) const;

  /// Completes what a killed process had begun and removes what it left. For the one run at work here.
  void recover() const;

  /// Removes the oldest until `keep` are left; never `newest`, nor where LOWEST_VAL points.
  void prune(std::int64_t keep, const std::filesystem::path& newest) const;

  /// losses.json of a checkpoint, by name of the validation set.
  void note_losses(const std::filesystem::path& checkpoint,
                   const std::map<std::string, double>& losses) const;

 private:
  void settle(const std::filesystem::path& newest, const Origin& origin) const;
  void set_aside(const std::filesystem::path& checkpoint) const;
  void point_to_lowest() const;
  std::filesystem::path dir_;
  std::string best_metric_key_;
};

}  // namespace nemocube
