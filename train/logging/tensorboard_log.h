#pragma once
#include <filesystem>
#include <string>

#include "train/logging/event_files.h"
#include "train/logging/records.h"

namespace nemocube {

/// Which scalars are written, and where. The flags have the names of Megatron-LM's options.
struct TensorboardOptions {
  std::filesystem::path folder;
  std::int64_t log_interval = 1;  ///< steps from one point to the next
  bool log_timers = false;        ///< iteration-time
  bool log_throughput = false;    ///< throughput, where TrainingRecord::flops is known
  bool log_memory = false;        ///< mem-max-allocated-bytes
  bool log_world_size = false;    ///< world-size
  bool log_validation_ppl = false;
};

/// The scalars of one training step, by step: Megatron-LM's tags (megatron/training/training.py), then the
/// fields of training.jsonl, which are AutoModel's. Fields that are absent or null there are left out.
/// `seconds` and `flops` are of all `steps` since the previous point.
Scalars training_scalars(const TensorboardOptions& options, const TrainingRecord& record, double seconds,
                         double flops, std::int64_t steps);
/// The same against samples: learning-rate, batch-size, lm loss and grad-norm, with " vs samples" behind the
/// tag.
Scalars training_scalars_vs_samples(const TensorboardOptions& options, const TrainingRecord& record);
/// `set`: the name of the validation set, which becomes part of all tags unless it is "default". The
/// perplexity is exp(min(20, val_loss)).
Scalars validation_scalars(const TensorboardOptions& options, const std::string& set,
                           const ValidationRecord& record);
Scalars validation_scalars_vs_samples(const TensorboardOptions& options, const std::string& set,
                                      const ValidationRecord& record);

/// TensorBoard's event files of a run. Steps count from 0, as in training.jsonl. Points over samples have
/// their own folder below the steps' folder: a START event names one step for all tags of its folder.
class TensorboardLog {
 public:
  struct Start {
    std::int64_t first_step = 0, consumed_samples = 0;
    std::int64_t serial = 1;     ///< LogStart::serial
    bool leaves_branch = false;  ///< LogStart::leaves_branch
  };
  /// Touches no file before the first point.
  TensorboardLog(TensorboardOptions options, const Start& start, const WallClock& clock);

  /// Step s adds a point when s + 1 is a multiple of log_interval.
  void training(const TrainingRecord& record);
  void validation(const std::string& set, const ValidationRecord& record);
  /// To be called after every checkpoint (EventFiles::keep_branch).
  void keep_branch();

 private:
  TensorboardOptions options_;
  EventFiles steps_, samples_;
  double seconds_ = 0, flops_ = 0;  // since the last point
  std::int64_t steps_since_point_ = 0;
};

}  // namespace nemocube
