#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/logging/jsonl.h"
#include "train/logging/records.h"
#include "train/logging/tensorboard_log.h"
#include "train/logging/wall_clock.h"

/// The files `training.jsonl` and `validation.jsonl` (`validation_NAME.jsonl` for further validation sets),
/// with the fields of NeMo AutoModel's logs and a few of our own, and the event files of TensorBoard. Only
/// one process may write them.
namespace nemocube {

/// training: step, epoch, timestamp, loss, grad_norm, lr, mem, tps, tps_per_gpu, mfu,
/// num_tokens_per_step, num_label_tokens, then positions_per_second, content_tokens_per_second,
/// label_tokens_per_second, samples_per_second, skipped, skipped_steps, mtp_loss_1 and on where depths of
/// multi-token prediction are trained, and aux_loss, seq_aux_loss, global_aux_loss and z_loss where the
/// recipe turns them on, then expert_tokens and expert_imbalance, then data_seconds, communication_seconds
/// and communication_waiting_seconds where they are known. mem is in GiB; tps is tokens per second.
/// tps_per_gpu is tps / ranks and counts all ranks; AutoModel leaves out the ranks of tp and pp. Rates are
/// null when no time has passed.
JsonLine training_line(const TrainingRecord& record, std::chrono::system_clock::time_point time);
/// validation: step, epoch, timestamp, val_loss, lr, num_label_tokens, mem, and the metrics that are present.
JsonLine validation_line(const ValidationRecord& record, std::chrono::system_clock::time_point time);

/// Where a run begins, as far as its logs are concerned.
struct LogStart {
  std::int64_t first_step = 0;        ///< 0: a new run
  std::int64_t serial = 1;            ///< Origin::serial of the first checkpoint that this run will save
  bool leaves_branch = false;         ///< the checkpoint will set aside existing ones of later steps
  std::string layout = {};            ///< of several ranks: RunRanks::text()
  std::int64_t consumed_samples = 0;  ///< rows that earlier starts trained on
  std::optional<TensorboardOptions> tensorboard = {};  ///< absent: no event files
};

/// No file is touched before the first line is logged. Then start_log() prepares all existing logs, also logs
/// of other validation sets, so that each file reads as one run. An older log kept as NAME.1, NAME.2 and so
/// on is removed when it is empty or when NAME repeats all of it (is_repeated()).
///
/// A run that leaves a branch does not own the existing logs until it has saved a checkpoint. Until then it
/// logs to NAME.branch_<serial>, which begins with the lines of NAME before first_step. keep_branch() then
/// moves the old logs to abandoned/ and renames the branch logs to NAME. If the run is killed in between, the
/// next run completes these renames. If the run saved no checkpoint, the next run moves its branch logs to
/// abandoned/, or removes the ones that NAME or a log in abandoned/ repeats.
class RunLog {
 public:
  /// Logs into `folder` for a run with these validation sets. Leaves files of other kinds alone, but throws
  /// Error when such a file has a name that the run needs. One process at a time (train/run/run_lock.h).
  RunLog(std::filesystem::path folder, std::span<const std::string> validation_sets, const LogStart& start,
         WallClock clock = std::chrono::system_clock::now);

  /// The first line of each start also has the field `version`, the version of the program.
  void training(const TrainingRecord& record);
  /// `name` is the name of the validation set; "default" writes validation.jsonl.
  void validation(const std::string& name, const ValidationRecord& record);
  /// To be called after every checkpoint. After the first one, the logs of the branch replace the old logs.
  void keep_branch();

  static std::string file_name(const std::string& validation_set);
  /// Completes the renames of keep_branch() in `folder` for runs whose first checkpoint has a serial of at
  /// most `serial`. The logs then belong to the checkpoint with this serial.
  static void complete_branches(const std::filesystem::path& folder, std::int64_t serial);

 private:
  std::vector<std::filesystem::path> logs() const;
  void begin();
  JsonlWriter& file(const std::string& name);

  std::filesystem::path folder_;
  std::vector<std::string> wanted_;  // names of the files of this run
  LogStart start_;
  WallClock clock_;
  bool begun_ = false, first_line_ = true;
  std::string ending_;  // of the file names, until the first checkpoint of the branch is saved
  std::map<std::string, JsonlWriter> files_;
  std::optional<TensorboardLog> tensorboard_;
};

}  // namespace nemocube
