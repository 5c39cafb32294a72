#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"
#include "parallel/comm/job/launch.h"
#include "parallel/comm/mpi/late_ranks.h"
#include "parallel/comm/rank_communicator.h"

namespace nemocube {

/// The ranks of this job, from start to end. The constructor starts MPI where the launcher has started
/// several ranks. A process has one World at a time; communicators must not outlive it.
///
/// Ranks of one machine divide its CPUs into threads as their bindings say (rank_threads.h), unless
/// OMP_NUM_THREADS is set.
///
/// Ranks on one node share memory. Where NEMOCUBE_NODE is set, ranks of one machine with different values
/// count as ranks of different nodes, for tests.
class World {
 public:
  /// All ranks together. Throws Error when MPI knows another number of ranks than the launcher, on every rank
  /// when one was given another command than rank 0 (Launch::command), and when MPI has run for an earlier
  /// command and the launcher cannot start it again. A rank that waits longer than the limit for the others,
  /// here, in split() or at the end, ends the job (time_limit.h).
  explicit World(const Launch& launch, const CommOptions& options = {});
  /// All ranks together; waits for started operations. While an exception unwinds the stack MPI goes on:
  /// report_failure() (parallel/comm/job/failure.h) then ends the job.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  int local_rank() const { return local_rank_; }  ///< among the ranks of this node
  int node() const { return node_; }              ///< nodes are numbered by their lowest rank
  int nodes() const { return nodes_; }

  /// Name and version of the message library, "Open MPI v4.1.4"; empty for one rank.
  std::string library() const { return transport_ ? transport_->library() : ""; }

  Communicator& communicator() const { return *communicator_; }  ///< of all ranks, named "world"
  /// All ranks together: ranks of one colour form a
  /// group, ordered by key. Null for colour < 0.
  std::unique_ptr<Communicator> split(const std::string& name, int colour, int key);
  /// The ranks of this node, for host_x() calls; null for one rank. The first call is made by all ranks
  /// together: it divides them by node.
  Communicator* node_group();
  /// All ranks together: a second group of all ranks, for one other thread of each host. Its
  /// operations run in the thread that calls them, beside operations of all other groups, which
  /// they never hold up. Waits may last longer than usual, by the time that `storage_bytes`
  /// take on slow storage. Null for one rank.
  std::unique_ptr<Communicator> background_group(const std::string& name, std::int64_t storage_bytes);
  /// All ranks together: makes the object that tells which ranks are late. Null for one rank.
  std::unique_ptr<LateRanks> late_ranks();
  /// Operations of all groups that wait for messages throw from now on: the job is about to end with an
  /// error.
  void give_up_waiting() const { engine_->ending = true; }
  double timeout_seconds() const { return engine_->options.timeout_seconds; }
  /// All ranks together, each with a CUDA device of its own, which it has chosen: collectives of
  /// CUDA tensors go through NCCL from now on, in this group and in groups of split(). Error on
  /// every rank where one rank cannot use NCCL.
  void use_nccl();
  bool uses_nccl() const { return nccl_ != nullptr; }
  /// Waits for the collectives of CUDA tensors that this rank has queued: Communicator::stats() has their
  /// seconds then.
  void wait_for_collectives() const;
  /// All ranks give the same options, while no operation runs.
  void set_options(const CommOptions& options) { engine_->options = options; }

  /// Whether MPI runs in this process: from the start of a World of several ranks to its end, and further
  /// where an exception ended the World. node_of_process() is then the rank's node.
  static bool running();
  static int node_of_process();
  /// Ends all ranks with this exit code, whatever they do. Returns only where MPI does not run.
  static void abort(int exit_code) noexcept;

 private:
  friend class StorageTime;
  void find_neighbours(const Launch& launch);
  /// Null for colour < 0.
  std::unique_ptr<MessageGroup> split_messages(const std::string& name, int colour, int key);
  /// A call of the library that waits for all ranks, with the limit of other waits.
  template <class Fn>
  auto in_time(const std::string& call, Fn&& fn) const;

  int uncaught_;
  std::shared_ptr<CommEngine> engine_;
  Transport* transport_ = nullptr;  // null for one rank
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Communicator> node_group_;  // null: not asked for, or the world itself
  std::shared_ptr<NcclGroup> nccl_;           // of all ranks; null: not in use
  int local_rank_ = 0, local_size_ = 1, node_ = 0, nodes_ = 1;
};

/// While an object lives, this rank waits longer for other ranks: CommOptions::timeout_seconds and the time
/// of `bytes` on slow storage. For waits while other ranks write or read files.
class StorageTime {
 public:
  StorageTime(const World& world, std::int64_t bytes) : engine_(world.engine_), bytes_(bytes) {
    engine_->storage_bytes += bytes_;
  }
  ~StorageTime() { engine_->storage_bytes -= bytes_; }
  StorageTime(const StorageTime&) = delete;
  StorageTime& operator=(const StorageTime&) = delete;

 private:
  std::shared_ptr<CommEngine> engine_;
  std::int64_t bytes_;
};

}  // namespace nemocube
