#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "timeline/rates.h"
#include "timeline/schedule.h"

namespace emulator::timeline {

struct Options {
  bool transfers_free = false;  ///< transfers take no time once all their ranks are there
  /// A bound from below: a transfer waits for what was before it in its stream, but not for earlier transfers there, and
  /// transfers do not share links.
  bool transfers_apart = false;
};

constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

/// When an operation ran, in seconds from the start of the record.
struct Span {
  double ready = 0;  ///< sent, and what comes before it complete
  double begin = 0;  ///< of an exchange: the first of its transfers has all its ranks
  double end = -1;
  bool critical = false;  ///< on the longest chain of operations and calls
};

/// What a device did with the seconds of the whole; they add up to it.
struct DeviceTimes {
  int process = 0, rank = 0, device = 0;  ///< `process`: index
  double computing = 0;                   ///< kernels, products, local copies
  double transferring = 0;                ///< transfers of NCCL, and nothing computes
  double waiting = 0;                     ///< transfers that wait for other ranks, and nothing else
  double copying = 0;                     ///< from and to the host's memory, and nothing else
  double host = 0;                        ///< nothing was sent that could run
};

struct Critical {
  double computing = 0, transferring = 0, copying = 0, host = 0;
};

struct Result {
  double seconds = 0;
  std::vector<std::vector<Span>> operations;  ///< of each process, in the order of its operations
  /// Begin and end of the steps of each process's threads, in their order.
  std::vector<std::vector<std::vector<Span>>> steps;
  std::vector<DeviceTimes> devices;
  Critical critical;
  std::size_t incomplete_transfers = 0;  ///< some of whose ranks have no record: they take part without them
  double link_bound = 0;  ///< the longest of: first transfer of a link plus the seconds of all its transfers
};

/// Places all operations in time, by the rules of TIMELINE.md. Throws std::runtime_error for records that cannot be (operations
/// that wait for one another).
Result simulate(const std::vector<Process>& processes, const Rates& rates, const Options& options = {});

/// What communication costs the whole.
struct Exposed {
  double seconds = 0;  ///< of all, as programmed
  double exposed = 0;  ///< more than with transfers that take no time
  double least = 0;    ///< the same at least, whatever the order of transfers, by dependencies and rates
};
Exposed exposed_communication(const std::vector<Process>& processes, const Rates& rates);

}  // namespace emulator::timeline
