#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "timeline/rates.h"
#include "timeline/schedule.h"
#include "timeline/simulate.h"

/// What simulate() works on, for its three parts: dependencies.cpp puts it together, simulate.cpp runs it, and outcome.cpp reads what
/// came of it. Operations, transfers, threads and devices go by their index in the lists of Simulation.
namespace emulator::timeline {

/// Of a device, each with a capacity of 1. Those from nvlink_out on are directions of links.
enum class Resource : std::uint8_t {
  multiprocessors,
  dram,
  upload_engine,
  download_engine,
  nvlink_out,
  nvlink_in,
  network_out,
  network_in
};

/// What an operation or a transfer uses while it runs.
struct Use {
  std::size_t device;
  Resource resource;
  double share;  ///< at full speed; of a link, the weight among those who use it at the same time
};
inline bool is_link(Resource resource) { return resource >= Resource::nvlink_out; }

/// An operation of a process.
struct Node {
  const Operation* operation = nullptr;
  std::size_t process = 0, device = 0;
  std::size_t missing = 0;  ///< operations before it that have not ended
  bool sent = false;
  std::vector<std::size_t> successors, meetings;
  std::size_t open_meetings = 0;
  Span span;
  // What made it ready: an operation, or a step of a thread.
  std::size_t cause = none, cause_thread = none, cause_step = none;
  std::size_t partner = none;  ///< of an exchange: the operation that its last transfer waited for
};

/// A transfer with the operations of the ranks that take part.
struct Meeting {
  Transfer transfer;
  std::vector<std::size_t> members;  ///< operations, in the order of the record
  bool one_node = false;             ///< all members are devices of one node
  double link_seconds = 0;           ///< alone on its links
  double latency = 0, work = 0;      ///< seconds that it takes: whatever else runs; at full speed
  std::vector<Use> uses;
  std::size_t arrived = 0;
  std::size_t last = none;      ///< the operation that arrived last
  double begin = -1, end = -1;  ///< of the transfer itself
  bool message() const { return transfer.kind == Transfer::Kind::message; }
};

struct Thread {
  std::size_t process = 0;
  const std::vector<HostStep>* steps = nullptr;
  std::size_t next = 0;
  double end = 0;  ///< of the step `next`, unless it waits
  std::size_t waits_for = 0;
  std::vector<Span> spans;
  std::vector<std::size_t> causes;  ///< of steps that had to wait: the last operation
  bool waiting = false;
};

struct Simulation {
  const std::vector<Process>& processes;
  std::vector<Node> nodes = {};
  std::vector<std::size_t> first = {};  ///< node of each process's first operation
  std::vector<std::map<std::uint64_t, std::size_t>> by_id = {};
  std::vector<std::pair<std::size_t, int>> devices = {};  ///< process and number
  std::vector<Meeting> meetings = {};
  std::vector<Thread> threads = {};

  /// Node of an operation; `none` for one that ended before the record began.
  std::size_t node_of(std::size_t process, std::uint64_t id) const {
    const auto found = by_id[process].find(id);
    return found == by_id[process].end() ? none : found->second;
  }
  /// Rank of a member of the meeting in its communicator.
  int rank_in(const Meeting& meeting, std::size_t member) const;
};

/// Everything at its beginning: nothing is sent, no time has passed.
Simulation connect(const std::vector<Process>& processes, const Rates& rates, const Options& options);

/// Of a simulation that has ended after `seconds`.
Result outcome_of(Simulation simulation, double seconds);

}  // namespace emulator::timeline
