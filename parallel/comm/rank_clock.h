#pragma once
#include <cstdint>

#include "parallel/comm/communicator.h"

/// The steady clocks of different machines tell different times. Times here are nanoseconds of
/// std::chrono::steady_clock.
namespace nemocube {

/// How a rank's clock relates to rank 0's clock at a moment: `time` here is `time` + `offset` there.
struct ClockReading {
  std::int64_t time = 0, offset = 0;
  /// The most that the true offset differs: half of the time of a message to rank 0 and back.
  std::int64_t uncertainty = 0;
};

/// From one message to rank 0 and its answer. By this rank's clock they were sent and received at t0 and t3,
/// by the clock of rank 0 received and sent at t1 and t2:
///   offset = ((t1 - t0) + (t2 - t3)) / 2,   uncertainty = ((t3 - t0) - (t2 - t1)) / 2, rounded up
/// Source: D. Mills, RFC 5905 (NTP), section 8.
ClockReading reading_of_round(std::int64_t t0, std::int64_t t1, std::int64_t t2, std::int64_t t3);

/// All ranks together. Each rank in turn sends `rounds` messages to rank 0; the round that took least counts.
ClockReading read_clock_of_rank_0(Communicator& all, int rounds = 21);

/// The time of rank 0, from two readings: the offset changes evenly between them and beyond. Each reading is
/// first narrowed by the other one, as clocks drift apart by at most 100 parts in a million: where ranks
/// share cores, a reading may consist of slow rounds only.
class RankClock {
 public:
  RankClock(const ClockReading& first, const ClockReading& second);
  std::int64_t on_rank_0(std::int64_t time) const;
  std::int64_t uncertainty() const { return uncertainty_; }  ///< the larger one, after narrowing

 private:
  ClockReading first_;
  double drift_ = 0;  // nanoseconds of offset for each nanosecond
  std::int64_t uncertainty_ = 0;
};

}  // namespace nemocube
