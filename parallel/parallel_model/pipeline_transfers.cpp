#include "parallel/parallel_model/pipeline_transfers.h"

#include <algorithm>

#include "core/error.h"

namespace nemocube {

void PipelineTransfers::give(Transfer::Payload payload, std::int64_t stage, std::int64_t microbatch,
                             const Tensor& tensor) {
  const std::int64_t next = stage + (payload == Transfer::Payload::activation ? 1 : -1);
  const Key key{payload, stage, microbatch};
  if (rank_of_stage_[static_cast<std::size_t>(next)] == ranks_.rank())
    arrivals_[key] = {tensor, nullptr};
  else
    outgoing_[key] = tensor.as_contiguous();
}

Tensor PipelineTransfers::take(Transfer::Payload payload, std::int64_t stage, std::int64_t microbatch) {
  const auto found = arrivals_.find({payload, stage, microbatch});
  expect(found != arrivals_.end(), "a stage waits for a tensor of stage ", stage, ", microbatch ", microbatch,
         ", that no exchange brings");
  const Arrival arrival = std::move(found->second);
  arrivals_.erase(found);
  if (!arrival.exchange) return arrival.tensor;
  arrival.exchange->wait();
  // Exchanges end in their order. What those before this one have sent is free now.
  if (const auto own = std::ranges::find(under_way_, arrival.exchange); own != under_way_.end()) {
    for (auto work = under_way_.begin(); work != own; ++work) (*work)->wait();
    under_way_.erase(under_way_.begin(), own + 1);
  }
  return arrival.tensor;
}

void PipelineTransfers::exchange(const Exchange& transfers, const Room& room) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  const auto work = std::make_shared<Work>();
  for (const Transfer& t : transfers) {
    const Key key{t.payload, t.stage, t.microbatch};
    if (t.from == ranks_.rank()) {
      const auto tensor = outgoing_.extract(key);
      expect(!tensor.empty(), t, " before it is computed");
      sends.push_back({tensor.mapped(), static_cast<int>(t.to)});
    } else {
      const Tensor buffer = room(t);
      receives.push_back({buffer, static_cast<int>(t.from)});
      arrivals_[key] = {buffer, work};
    }
  }
  *work = ranks_.start_exchange(std::move(sends), std::move(receives));
  std::erase_if(under_way_, [](const auto& earlier) { return earlier->done(); });
  under_way_.push_back(work);
}

void PipelineTransfers::abandon() {
  arrivals_.clear();
  outgoing_.clear();
  under_way_.clear();
}

void PipelineTransfers::finish() {
  for (const auto& work : under_way_) work->wait();
  under_way_.clear();
  expect(arrivals_.empty() && outgoing_.empty(), "a pipeline ends with ", arrivals_.size() + outgoing_.size(),
         " tensors that no stage has taken");
}

}  // namespace nemocube
