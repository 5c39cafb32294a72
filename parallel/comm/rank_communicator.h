#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "parallel/comm/comm_engine.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/mpi/transport.h"

namespace nemocube {

class NcclGroup;

/// The communicator of a group of several ranks, for tensors of every device. Tensors of the host travel by
/// messages (parallel/comm/mpi/message_algorithms.h); tensors of a CUDA device by NCCL after use_nccl(), else
/// through copies on the host (staged_collective.h), made by the thread that executes the operation.
class RankCommunicator final : public Communicator {
 public:
  RankCommunicator(std::string name, std::shared_ptr<MessageGroup> group, std::shared_ptr<CommEngine> engine,
                   CallsFrom from = CallsFrom::main_thread);
  /// Waits for other ranks may last longer, as with StorageTime, but in this communicator alone.
  void wait_for_storage_of(std::int64_t bytes) { storage_bytes_ = bytes; }
  /// Started operations of this communicator that are not done fail, and so does every later operation of the
  /// process: an exception has left their Work behind, and the job is about to end.
  ~RankCommunicator() override;
  std::unique_ptr<Communicator> of_same_ranks(std::string name) const override;
  /// CUDA tensors go through `group`, which has the same ranks, from now on.
  void use_nccl(std::shared_ptr<NcclGroup> group) { nccl_ = std::move(group); }

 private:
  void run(Collective call) override;
  Work start(Collective call) override;
  void execute(const Collective& call);     // with the transport
  void begin_nccl(const Collective& call);  // the steps before a call of nccl_

  std::shared_ptr<MessageGroup> group_;
  std::shared_ptr<CommEngine> engine_;
  CallsFrom from_;
  std::int64_t storage_bytes_ = 0;
  std::shared_ptr<NcclGroup> nccl_;  // null: none
  const char* traced_name_;          // of the group, for traces
  std::atomic<int> started_{0};      // and not done
};

}  // namespace nemocube
