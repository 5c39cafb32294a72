#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "parallel/comm/job_queue.h"

namespace nemocube {

struct CommOptions {
  /// A rank that waits longer than this for a message, while none arrives or leaves, throws Error.
  double timeout_seconds = 600;
  /// Before each collective the ranks compare operation, number, dtype, counts, reduction and root. Costs two
  /// short messages for each rank, through rank 0 of the group. Not for those in CUDA graphs: they are the
  /// collectives of a step before the capture.
  bool check_collectives = false;
  /// Sums of CUDA tensors by NCCL are formed in the order of ranks (nccl_group.h). Those by MPI always are.
  bool deterministic_collectives = false;
  /// Memory in which contributions of other ranks wait to be added, for each operation that runs.
  std::int64_t staging_bytes = std::int64_t{16} << 20;
  /// Largest contribution that is received as one and then added.
  std::int64_t chunk_bytes = std::int64_t{1} << 20;
  /// Largest single message. Longer ones go in pieces, whose arrival shows that a transfer moves on.
  std::int64_t message_bytes = std::int64_t{1} << 20;
};

/// What StorageTime takes for slow storage.
constexpr double slow_storage_bytes_per_second = 1e7;

class NcclWatch;

/// What all communicators of the process share.
struct CommEngine {
  CommOptions options;
  std::timed_mutex transport_mutex;            ///< held by the thread that sends and receives (CallsFrom)
  std::atomic<std::int64_t> storage_bytes{0};  ///< that ranks write or read now (StorageTime)
  std::atomic<bool> ending{false};             ///< the job is about to be aborted
  std::shared_ptr<NcclWatch> nccl;             ///< null: tensors of devices are staged
  JobQueue queue{"nemocube:comm"};
};

/// Which thread calls the operations of a communicator.
enum class CallsFrom {
  /// The one that calls those of all others too. They share a queue, and each holds the transport until it is
  /// done, but for the moments in which no message arrives.
  main_thread,
  /// Another one (World::background_group()), in which they run. They hold the transport for one call of MPI
  /// at a time: neither kind of operation waits for the ranks of the other.
  background_thread,
};

}  // namespace nemocube
