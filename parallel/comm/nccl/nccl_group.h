#pragma once
#include <memory>
#include <string>

#include "core/cuda/streams.h"
#include "parallel/comm/collective.h"
#include "parallel/comm/comm_engine.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/comm/nccl/nccl_watch.h"

namespace nemocube {

/// Collectives of CUDA tensors by NCCL, for the ranks of one group. The host queues them and never waits for
/// the device: an operation begins after the kernels queued before it and runs beside kernels queued later.
/// Three streams keep an urgent operation from queueing behind one whose result is wanted later:
///     Stream::communication   collectives of run()
///     Stream::background      collectives of start(): weights gathered ahead, sums of gradients
///     Stream::messages        all_to_all_v and exchange, of run() and of start()
/// Operations of one communicator of NCCL go one after the other on all streams. Kernels queued after
/// Work::wait() begin after the operation.
/// Source: NVIDIA, NCCL User Guide 2.28, "CUDA Stream Semantics", "Using multiple NCCL communicators
/// concurrently".
///
/// Sums: by NCCL, in an order of its own, which repeats for the same ranks, sizes and machines. With
/// CommOptions::deterministic_collectives the ranks exchange their parts, each adds them in the order of
/// ranks, as sums by MPI are formed (reduce_in_order_kernel.h), and the sums are gathered: the same bytes
/// sent, and up to (n - 1) / n of the tensor more memory. Maxima and minima of floats are always formed in
/// this way, because NCCL loses NaN.
class NcclGroup {
 public:
  /// All ranks together. `all`: every rank of the job, by host messages.
  static std::shared_ptr<NcclGroup> of_world(Communicator& all, std::unique_ptr<LateRanks> late,
                                             std::shared_ptr<CommEngine> engine);
  /// All ranks of this group: divides them as World::split does. Null for colour < 0.
  std::shared_ptr<NcclGroup> split(const std::string& name, int colour, int key) const;
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  /// Queue a call of `communicator`, which has the same ranks. Kernels queued after run() wait for its end.
  void run(const Collective& call, const Communicator& communicator);
  Work start(const Collective& call, const Communicator& communicator);

 private:
  NcclGroup(std::string name, nccl::Handle handle, std::shared_ptr<CommEngine> engine);
  Awaited next(const std::string& text, const Communicator& communicator, bool captured);
  Work start_on(cuda::Stream stream, const Collective& call, const Communicator& communicator);
  bool in_order(const Collective& call) const;
  void queue(const Collective& call, int rank, const Awaited& awaited);
  void queue_in_order(const Collective& call, int rank, int size, const Awaited& awaited);

  std::string name_;
  nccl::Handle handle_;
  std::shared_ptr<CommEngine> engine_;
  std::shared_ptr<const std::vector<int>> members_;  // world ranks; null before the first call
};

/// Why this process cannot use NCCL; empty where it can.
std::string nccl_missing();
/// "NCCL 2.28.3", where it can.
std::string nccl_version();

}  // namespace nemocube
