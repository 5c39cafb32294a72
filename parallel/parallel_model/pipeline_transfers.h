#pragma once
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/schedule/transfers.h"

namespace nemocube {

/// Executes the exchanges of a rank's programs (parallel/schedule/transfers.h). The object holds a tensor
/// from the stage that computes it until the stage that needs it, on the same or another rank.
class PipelineTransfers {
 public:
  /// Makes the tensor into which a transfer is received.
  using Room = std::function<Tensor(const Transfer&)>;

  /// `ranks` is the group "pp", and must outlive this object.
  PipelineTransfers(Communicator& ranks, std::vector<std::int64_t> rank_of_stage)
      : ranks_(ranks), rank_of_stage_(std::move(rank_of_stage)) {}

  /// Hands over a result of `stage`: activations for the stage after it, gradients for the stage before it.
  void give(Transfer::Payload payload, std::int64_t stage, std::int64_t microbatch, const Tensor& tensor);
  /// The tensor that give() got with these numbers, here or on another rank. Waits for an exchange that is
  /// under way; std::logic_error when none brings it.
  Tensor take(Transfer::Payload payload, std::int64_t stage, std::int64_t microbatch);
  /// Starts the sends and receives of one exchange.
  void exchange(const Exchange& transfers, const Room& room);
  /// At the end of a program: waits for the exchanges. std::logic_error when a tensor is left.
  void finish();
  /// After a program that failed in a capture (core/cuda/graph.h), of which nothing has run: forgets all of
  /// it. Called while the exception unwinds the stack: exchanges under way are not waited for.
  void abandon();

 private:
  using Key =
      std::tuple<Transfer::Payload, std::int64_t, std::int64_t>;  // stage that computed it, microbatch
  struct Arrival {
    Tensor tensor;
    std::shared_ptr<Work> exchange;  // null: the tensor is of this rank
  };

  Communicator& ranks_;
  std::vector<std::int64_t> rank_of_stage_;
  std::map<Key, Arrival> arrivals_;
  std::map<Key, Tensor> outgoing_;
  std::vector<std::shared_ptr<Work>> under_way_;
};

}  // namespace nemocube
