#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/logging/expert_record.h"

namespace nemocube {

/// Parts of the time of a step on the rank that writes the log, in seconds.
struct StepTimes {
  double data = 0;  ///< until the rank had the rows of its microbatches
  /// CommStats::seconds and waiting_seconds of all groups; absent on one rank, and with NCCL, which does not
  /// report times. Communication may run beside computation.
  std::optional<double> communication = {}, waiting = {};
};

/// The log entry of a training step. Counts are of the whole step, over all ranks.
struct TrainingRecord {
  std::int64_t step = 0, epoch = 0;
  double loss = 0;                  ///< mean over labelled tokens
  std::optional<double> grad_norm;  ///< before clipping
  double lr = 0;                    ///< of the next step: the schedule has already advanced
  std::int64_t peak_bytes = 0;      ///< most memory held during the step, per rank
  double seconds = 0;               ///< of training, since the previous record
  int ranks = 1;
  std::int64_t positions = 0;       ///< batch rows times length, padding included
  std::int64_t content_tokens = 0;  ///< positions that are not padding
  std::int64_t tokens = 0;          ///< label positions less the trailing -100 of each row
  std::int64_t label_tokens = 0;    ///< labels other than -100
  std::int64_t samples = 0;
  std::optional<double> mfu;       ///< percent
  bool skipped = false;            ///< loss or gradient was not finite: the weights did not move
  std::int64_t skipped_steps = 0;  ///< of the run so far
  std::vector<std::pair<std::string, double>> auxiliary_losses;  ///< by name of the field; not part of `loss`
  std::vector<double> mtp_losses = {};  ///< of each depth of multi-token prediction; not part of `loss`
  ExpertRecord experts = {};            ///< without layers: not logged
  std::int64_t consumed_samples = 0;    ///< rows of the run so far, this step included
  double flops = 0;                     ///< step_flops() of all ranks; 0: not counted
  /// auxiliary_losses over their coefficients and the number of MoE blocks, as Megatron logs them.
  std::vector<std::pair<std::string, double>> mean_auxiliary_losses = {};
  std::optional<StepTimes> times = {};  ///< absent: not logged

  std::optional<double> per_second(std::int64_t count) const;  ///< absent where no time has passed
  std::optional<double> tokens_per_second_and_rank() const;
};

struct ValidationRecord {
  std::int64_t step = 0, epoch = 0;
  double val_loss = 0;
  double lr = 0;
  std::int64_t label_tokens = 0;
  std::int64_t peak_bytes = 0;
  std::optional<double> exact_match, f1;  ///< percent; left out of the line when absent
  std::int64_t consumed_samples = 0;      ///< rows that the run has trained on so far
};

double gib(std::int64_t bytes);

}  // namespace nemocube
