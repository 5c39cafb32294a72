#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/trace.h"
#include "parallel/comm/rank_clock.h"
#include "train/profile/step_range.h"
#include "train/ranks/run_ranks.h"

namespace nemocube {

/// Records some steps of all ranks of a run as a trace, RUN/profile/steps_A-B.json (docs/logs.md). The ranks
/// call every function together. Training has the same bits as without, even if the file fails.
class StepProfile {
 public:
  /// Facts about a rank that rank 0 reports.
  struct RankSummary {
    std::int64_t events = 0, dropped = 0, bytes_sent = 0;
    std::int64_t begin =
        std::numeric_limits<std::int64_t>::max();          ///< of the first event, by the clock of rank 0
    std::int64_t clock_offset = 0, clock_uncertainty = 0;  ///< nanoseconds
    double device_uncertainty = 0;                         ///< seconds
  };

  /// `ranks` and `groups` outlive this object; `groups` is null for one rank.
  StepProfile(const StepRange& wanted, const RunRanks& ranks, const ProcessGroups* groups,
              std::filesystem::path run_directory, bool cuda_graphs);

  /// To be called once, before the first step of this start, `next`, of a run of `total` steps: warns of
  /// wanted steps that will not come.
  void announce(std::int64_t next, std::int64_t total) const;
  /// To be called between two steps, before step `step`. Begins the profile before its first step, and writes
  /// the profile after its last one. Returns whether this took time that does not count as training.
  bool before_step(std::int64_t step);
  void after_step(std::int64_t step, double seconds);
  /// To be called after the last step of the run: writes the steps recorded so far.
  void finish();

 private:
  void begin(std::int64_t step);
  void end();
  void write(const trace::Recorded& recorded, std::int64_t bytes_sent, const RankClock& clock);
  std::int64_t bytes_sent() const;
  StepRange done() const { return {first_, last_}; }
  std::string other_data(const std::vector<RankSummary>& summaries) const;
  std::string overhead_text() const;

  StepRange wanted_;
  const RunRanks& ranks_;
  const ProcessGroups* groups_;
  std::filesystem::path folder_;
  bool cuda_graphs_;

  std::optional<ClockReading> clock_;  // of the beginning; absent: nothing is recorded
  std::int64_t bytes_before_ = 0;
  std::int64_t first_ = 0, last_ = -1;   // steps recorded
  std::int64_t steps_seen_ = 0;          // of this start
  std::vector<double> before_, during_;  // seconds of steps
};

}  // namespace nemocube
