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
  /// short messages for each rank, through rank 0 of the group. Collectives in CUDA graphs are not compared
  /// again: a step before the capture had the same ones.
  bool check_collectives = false;
  /// Sums of CUDA tensors by NCCL are formed in the order of ranks (nccl_group.h), as sums by MPI always are.
  bool deterministic_collectives = false;
  /// Memory in which contributions of other ranks wait to be added, for each operation that runs.
  std::int64_t staging_bytes = std::int64_t{16} << 20;
  /// The largest contribution that is received whole before it is added.
  std::int64_t chunk_bytes = std::int64_t{1} << 20;
  /// Largest single message. Longer messages go in pieces, whose arrival shows that a transfer moves on.
  std::int64_t message_bytes = std::int64_t{1} << 20;
};

/// The speed of slow storage in StorageTime.
constexpr double slow_storage_bytes_per_second = 1e7;

class NcclWatch;

/// State that all communicators of the process share.
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
  /// The thread of all other operations. They share a queue, and an operation holds the transport until it is
  /// done, except in moments in which no message arrives.
  main_thread,
  /// Another thread (World::background_group()), in which the operations run. They hold the transport for one
  /// call of MPI at a time: neither kind of operation waits for the ranks of the other kind.
  background_thread,
};

}  // namespace nemocube
