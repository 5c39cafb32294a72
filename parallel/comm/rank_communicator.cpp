#include "parallel/comm/rank_communicator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/allocation_owner.h"
#include "core/cuda/graph.h"
#include "core/profile.h"
#include "parallel/comm/collective.h"
#include "parallel/comm/mpi/message_algorithms.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/staged_collective.h"

namespace nemocube {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

}  // namespace

RankCommunicator::RankCommunicator(std::string name, std::shared_ptr<MessageGroup> group,
                                   std::shared_ptr<CommEngine> engine, CallsFrom from)
    : Communicator(std::move(name), group->rank(), group->members()),
      group_(std::move(group)),
      engine_(std::move(engine)),
      from_(from),
      traced_name_(kept_name(this->name())) {}

RankCommunicator::~RankCommunicator() {
  if (started_ == 0) return;
  engine_->ending = true;
  const std::lock_guard lock(engine_->transport_mutex);  // what runs has stopped, and nothing starts any more
}

std::unique_ptr<Communicator> RankCommunicator::of_same_ranks(std::string name) const {
  auto same = std::make_unique<RankCommunicator>(std::move(name), group_, engine_);
  same->use_nccl(nccl_);
  return same;
}

void RankCommunicator::execute(const Collective& call) {
  const Clock::time_point start = Clock::now();
  const StagedCollective staged(call, rank());
  CommStats stats = run_by_messages({*this, *group_, *engine_, staged.on_host(), from_, storage_bytes_});
  staged.bring_back();
  const Clock::duration taken = Clock::now() - start;
  stats.seconds = Seconds(taken).count();
  tally()->add(call.operation, stats);
  if (!trace::recording()) return;
  trace::Event event = traced_collective(call, traced_name_, stats);
  event.begin = trace::nanoseconds(start);
  event.duration = taken / std::chrono::nanoseconds(1);
  event.row = from_ == CallsFrom::main_thread ? trace::collective_row : trace::own_row;
  trace::record(event);
}

namespace {
/// Whether the call's tensors are on a CUDA device.
bool on_cuda(const Collective& call) {
  if (call.operation != Operation::exchange) return call.in.defined() && call.in.device().is_cuda();
  const auto there = [](const auto& message) { return message.tensor.device().is_cuda(); };
  const auto count = std::ranges::count_if(call.sends, there) + std::ranges::count_if(call.receives, there);
  expect(count == 0 || count == std::ssize(call.sends) + std::ssize(call.receives),
         "exchange: some tensors are on a CUDA device, others are not");
  return count > 0;
}
}  // namespace

void RankCommunicator::begin_nccl(const Collective& call) {
  // Another rank may not come to a captured call, where it cannot capture one before it.
  const bool checked = engine_->options.check_collectives && !cuda::Capture::current();
  if (checked && call.operation != Operation::exchange)
    engine_->queue.run([&] {
      const std::lock_guard lock(engine_->transport_mutex);
      compare_calls({*this, *group_, *engine_, call, from_, storage_bytes_});
    });
  count_as_queued(call.operation, {.calls = 1, .bytes_sent = bytes_for_others(call, rank(), size())});
}

namespace {
// The queue would keep an error, and its thread does not know of the capture.
void refuse_in_capture(const Collective& call) {
  cuda::refuse_in_capture(on_cuda(call) ? "ranks exchange tensors of the device by MPI"
                                        : "ranks exchange values of the host");
}
}  // namespace

void RankCommunicator::run(Collective call) {
  if (nccl_ && on_cuda(call)) {
    begin_nccl(call);
    return nccl_->run(call, *this);
  }
  if (from_ == CallsFrom::background_thread) {
    require_going_on(*engine_);
    return execute(call);
  }
  refuse_in_capture(call);
  static Zone zone("comm/blocked");
  const ZoneTimer timer(zone);
  engine_->queue.run([&] {
    const std::lock_guard lock(engine_->transport_mutex);
    execute(call);
  });
}

Work RankCommunicator::start(Collective call) {
  if (nccl_ && on_cuda(call)) {
    begin_nccl(call);
    return nccl_->start(call, *this);
  }
  expect(from_ == CallsFrom::main_thread, "an operation of group ", name(),
         " is to be started: in its thread they run");
  refuse_in_capture(call);
  ++started_;
  return engine_->queue.start(
      [this, engine = engine_, held = std::make_shared<const Collective>(std::move(call))] {
        const std::lock_guard lock(engine->transport_mutex);
        require_going_on(*engine);  // first: this communicator may be gone
        execute(*held);
        --started_;
      });
}

}  // namespace nemocube
