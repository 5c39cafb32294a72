#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "train/logging/jsonl.h"

/// The files `training.jsonl` and `validation.jsonl` (`validation_NAME.jsonl` for further validation sets),
/// in the fields of NeMo AutoModel's logs and a few of our own. One process writes them.
namespace nemocube {

using WallClock = std::function<std::chrono::system_clock::time_point()>;

/// What a training step adds to the log. Counts are of the whole step, over all ranks.
struct TrainingRecord {
  std::int64_t step = 0, epoch = 0;
  double loss = 0;                  ///< mean over labelled tokens
  std::optional<double> grad_norm;  ///< before clipping
  double lr = 0;                    ///< after the schedule has moved on, so the next step's
  std::int64_t peak_bytes = 0;      ///< most memory held during the step, per rank
  double seconds = 0;               ///< of training, since the previous record
  int ranks = 1;
  std::int64_t positions = 0;       ///< batch rows times length, padding included
  std::int64_t content_tokens = 0;  ///< positions that are no padding
  std::int64_t tokens = 0;          ///< label positions less the trailing -100 of each row
  std::int64_t label_tokens = 0;    ///< labels other than -100
  std::int64_t samples = 0;
  std::optional<double> mfu;       ///< percent
  bool skipped = false;            ///< loss or gradient was not finite: the weights did not move
  std::int64_t skipped_steps = 0;  ///< of the run so far
  std::vector<std::pair<std::string, double>> auxiliary_losses;  ///< by field, no part of `loss`
};

struct ValidationRecord {
  std::int64_t step = 0, epoch = 0;
  double val_loss = 0;
  double lr = 0;
  std::int64_t label_tokens = 0;
  std::int64_t peak_bytes = 0;
  std::optional<double> exact_match, f1;  ///< percent; left out of the line when absent
};

/// The lines. training: step, epoch, timestamp, loss, grad_norm, lr, mem, tps, tps_per_gpu, mfu,
/// num_tokens_per_step, num_label_tokens, then positions_per_second, content_tokens_per_second,
/// label_tokens_per_second, samples_per_second, skipped, skipped_steps, and of aux_loss, seq_aux_loss,
/// global_aux_loss and z_loss those that the recipe turns on. mem in GiB; tps = tokens per second;
/// tps_per_gpu = tps / ranks, all ranks, where AutoModel leaves out those of tp and pp. Rates are null when
/// no time has passed.
JsonLine training_line(const TrainingRecord& record, std::chrono::system_clock::time_point time);
/// validation: step, epoch, timestamp, val_loss, lr, num_label_tokens, mem, and the metrics there are.
JsonLine validation_line(const ValidationRecord& record, std::chrono::system_clock::time_point time);

/// "2026-08-22T09:05:03.007Z".
std::string utc_timestamp(std::chrono::system_clock::time_point time);

class RunLog {
 public:
  /// Logs into `folder` for a run that starts at `first_step` and has these validation sets. Logs that are
  /// there already, also of other validation sets, are treated as start_log() says; a file of another kind is
  /// left alone or, when its name is wanted, an Error. Creates the folder.
  RunLog(std::filesystem::path folder, std::span<const std::string> validation_sets, std::int64_t first_step,
         WallClock clock = std::chrono::system_clock::now);

  void training(const TrainingRecord& record);
  /// `name`: of the validation set; "default" writes validation.jsonl.
  void validation(const std::string& name, const ValidationRecord& record);

  static std::string file_name(const std::string& validation_set);

 private:
  JsonlWriter& file(const std::string& name);

  std::filesystem::path folder_;
  WallClock clock_;
  std::map<std::string, JsonlWriter> files_;
};

}  // namespace nemocube
