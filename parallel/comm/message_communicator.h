#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "parallel/comm/communicator.h"
#include "parallel/comm/job_queue.h"
#include "parallel/comm/transport.h"

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

/// Up to here latency counts more than bytes in all_reduce and broadcast.
constexpr std::int64_t latency_bound_bytes = 4096;

/// What StorageTime takes for slow storage.
constexpr double slow_storage_bytes_per_second = 1e7;

class NcclGroup;
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

/// Collectives made of messages between pairs of ranks. Every rank sends directly to every other one, rank
/// r first to r + 1. With n ranks and N bytes, all ranks together send
///   all_reduce      2 (n - 1) N: each rank adds one part of N / n and sends the sum to all. Up to 4 KiB
///                   each rank sends all to all, n (n - 1) N, and adds everything: half the latency
///   reduce_scatter  (n - 1) N, the first half of all_reduce; N counts the input of one rank
///   all_gather      (n - 1) N; N counts the output
///   broadcast       (n - 1) N: above 4 KiB the root deals out parts, which their ranks pass on to the others
///   all_to_all      what differs from the part that a rank keeps
///   barrier         messages without content
/// Nothing is padded: parts differ by one element where N does not divide. Tensors of a device travel by NCCL
/// after use_nccl(); else they are staged (staged_collective.h) by the thread that executes the operation.
class MessageCommunicator final : public Communicator {
 public:
  MessageCommunicator(std::string name, std::shared_ptr<MessageGroup> group,
                      std::shared_ptr<CommEngine> engine, CallsFrom from = CallsFrom::main_thread);
  /// Waits for other ranks may last longer, as with StorageTime, but in this communicator alone.
  void wait_for_storage_of(std::int64_t bytes) { storage_bytes_ = bytes; }
  /// If started operations of this communicator are not done, they fail, and so does every later one of the
  /// process: an exception has left their Work behind, and the job is about to end.
  ~MessageCommunicator() override;
  std::unique_ptr<Communicator> of_same_ranks(std::string name) const override;
  /// CUDA tensors go through `group`, which has the same ranks, from now on.
  void use_nccl(std::shared_ptr<NcclGroup> group) { nccl_ = std::move(group); }

 private:
  void run(Collective call) override;
  Work start(Collective call) override;
  void execute(const Collective& call);     // with the transport
  void begin_nccl(const Collective& call);  // what comes before a call of nccl_

  std::shared_ptr<MessageGroup> group_;
  std::shared_ptr<CommEngine> engine_;
  CallsFrom from_;
  std::int64_t storage_bytes_ = 0;
  std::shared_ptr<NcclGroup> nccl_;  // null: none
  const char* traced_name_;          // of the group, for traces
  std::atomic<int> started_{0};      // and not done
};

}  // namespace nemocube
