#include "parallel/comm/nccl/nccl_group.h"

#include <functional>
#include <utility>

#include "core/allocation_owner.h"
#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/range.h"
#include "parallel/comm/job/time_limit.h"
#include "parallel/comm/nccl/reduce_in_order_kernel.h"

namespace nemocube {
namespace {

using cuda::Stream;

struct Queued final : Work::State {
  Queued(Collective c, cuda::Event e) : call(std::move(c)), end(std::move(e)) {}
  void wait() override { cuda::wait_for_event(cuda::OnStream::current(), end); }
  bool done() override { return cuda::event_reached(end); }

  Collective call;  // whose tensors live until someone has waited
  cuda::Event end;
};

bool is_message(const Collective& call) {
  return call.operation == Operation::all_to_all || call.operation == Operation::exchange;
}

/// `count` elements of a contiguous tensor.
Tensor elements(const Tensor& t, std::int64_t begin, std::int64_t count) {
  return t.reshape({t.numel()}).narrow(0, begin, count);
}

}  // namespace

std::string nccl_missing() {
  if (!cuda::unavailable().empty()) return cuda::unavailable();
  if (!cuda::provides(nccl::library.name()))
    return "this build has no NCCL: its header nccl.h was not found when it was configured";
  try {
    nccl::library();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

std::string nccl_version() { return nccl::library(); }

NcclGroup::NcclGroup(std::string name, nccl::Handle handle, std::shared_ptr<CommEngine> engine)
    : name_(std::move(name)), handle_(std::move(handle)), engine_(std::move(engine)) {
  engine_->nccl->add(handle_);
}

NcclGroup::~NcclGroup() {
  engine_->nccl->remove(handle_);
  const TimeLimit limit(engine_->options.timeout_seconds, cat("the end of NCCL's group ", name_));
  handle_.reset();
}

std::shared_ptr<NcclGroup> NcclGroup::of_world(Communicator& all, std::unique_ptr<LateRanks> late,
                                               std::shared_ptr<CommEngine> engine) {
  nccl::UniqueId id{};
  if (all.rank() == 0) id = nccl::unique_id();
  all.host_broadcast(std::span(&id, 1), 0);
  engine->nccl = std::make_shared<NcclWatch>(*engine, all.rank(), std::move(late));
  const nccl::Handle handle = nccl::begin_world(id, all.rank(), all.size());
  engine->nccl->wait_until_ready(handle, engine->nccl->come_to_making("of all ranks"));
  return std::shared_ptr<NcclGroup>(new NcclGroup("world", handle, std::move(engine)));
}

std::shared_ptr<NcclGroup> NcclGroup::split(const std::string& name, int colour, int key) const {
  engine_->nccl->wait_for_all();
  const Awaited making = engine_->nccl->come_to_making(name);
  const nccl::Handle handle = nccl::begin_split(handle_, colour, key, name);
  engine_->nccl->wait_until_ready(handle_, making);
  if (colour < 0) return nullptr;
  engine_->nccl->wait_until_ready(handle, making);
  return std::shared_ptr<NcclGroup>(new NcclGroup(name, handle, engine_));
}

// Hosts come to a captured call with each launch.
Awaited NcclGroup::next(const std::string& text, const Communicator& communicator, bool captured) {
  if (!members_)
    members_ = std::make_shared<const std::vector<int>>(communicator.members().begin(),
                                                        communicator.members().end());
  if (captured) return {text, cat("launches of ", communicator.name()), 0, members_};
  return {text, communicator.name(), engine_->nccl->late().come(communicator.name()), members_};
}

void NcclGroup::queue(const Collective& call, int rank, const Awaited& awaited) {
  nccl::queue(handle_, call, grouped_messages(call, rank));
  engine_->nccl->wait_until_ready(handle_, awaited);
}

// What is taken of the device's memory here belongs to the stream of the operation.
void NcclGroup::queue_in_order(const Collective& call, int rank, int size, const Awaited& awaited) {
  const auto own = static_cast<std::size_t>(rank);
  const bool gathers = call.operation == Operation::all_reduce;
  const std::vector<std::int64_t> counts = gathers ? even_sizes(call.in.numel(), size) : call.in_counts;
  const Tensor others = Tensor::empty({size, counts[own]}, call.dtype, call.in.device());
  Collective parts;
  parts.operation = Operation::exchange;
  std::int64_t begin = 0, own_begin = 0;
  for (int r = 0; r < size; ++r) {
    const std::int64_t count = counts[static_cast<std::size_t>(r)];
    if (r == rank) own_begin = begin;
    parts.sends.push_back({elements(call.in, begin, count), r});
    parts.receives.push_back({others.select(r), r});
    begin += count;
  }
  queue(parts, rank, awaited);
  const Tensor sum = gathers ? elements(call.out, own_begin, counts[own]) : call.out;
  cuda::reduce_in_order(others, sum, call.reduction);
  if (!gathers) return;
  Collective gather;
  gather.operation = Operation::all_gather;
  gather.dtype = call.dtype;
  gather.in = sum;
  gather.out = call.out;
  gather.out_counts = counts;
  queue(gather, rank, awaited);
}

// NCCL takes the number where one operand of a maximum is a number and the other is NaN.
bool NcclGroup::in_order(const Collective& call) const {
  if (call.operation != Operation::all_reduce && call.operation != Operation::reduce_scatter) return false;
  if (!is_float(call.dtype)) return false;
  return call.reduction != Reduction::sum || engine_->options.deterministic_collectives;
}

void NcclGroup::run(const Collective& call, const Communicator& communicator) {
  start_on(is_message(call) ? Stream::messages : Stream::communication, call, communicator).wait();
}

Work NcclGroup::start(const Collective& call, const Communicator& communicator) {
  return start_on(is_message(call) ? Stream::messages : Stream::background, call, communicator);
}

Work NcclGroup::start_on(Stream stream, const Collective& call, const Communicator& communicator) {
  const cuda::Event before = cuda::record_event(cuda::OnStream::current());
  cuda::wait_for_event(stream, before);
  const cuda::OnStream on(stream);
  cuda::Capture* const capture = cuda::Capture::current();
  const bool timed = !capture && cuda::zones_are_timed();
  const auto& record = timed ? cuda::record_timed_event : cuda::record_event;
  const cuda::Event begin = record(stream);
  const std::string text = cat(describe(call), " of group ", communicator.name());
  const Awaited awaited = next(text, communicator, capture != nullptr);
  try {
    if (in_order(call))
      queue_in_order(call, communicator.rank(), communicator.size(), awaited);
    else
      queue(call, communicator.rank(), awaited);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& e) {
    fail(text, ": ", e.what());
  }
  const cuda::Event end = record(stream);
  std::function<void(double)> count_seconds;
  if (timed) {
    CommStats stats{.bytes_sent = bytes_for_others(call, communicator.rank(), communicator.size())};
    trace::Event traced = traced_collective(call, kept_name(communicator.name()), stats);
    traced.row = trace::first_device_row + static_cast<trace::Row>(stream);
    count_seconds = [tally = communicator.tally(), operation = call.operation, traced, begin,
                     end](double seconds) mutable {
      tally->add(operation, {.seconds = seconds});
      if (!trace::recording()) return;
      traced.begin = cuda::host_nanoseconds(begin);
      traced.duration = cuda::host_nanoseconds(end) - traced.begin;
      trace::record(traced);
    };
  }
  if (capture)
    // Launches are counted by the group of the first call. The ranks of a pipeline do not begin with the same
    // one.
    capture->watch(text, [engine = engine_, awaited, counts = !is_message(call)](
                             const cuda::Event& from, const cuda::Event& to, const std::string& what) {
      Awaited launch{what, awaited.group, 0, awaited.members};
      if (counts) launch.number = engine->nccl->late().come(launch.group);
      engine->nccl->add(from, to, std::move(launch));
    });
  else
    engine_->nccl->add(begin, end, awaited, std::move(count_seconds));
  return Work(std::make_shared<Queued>(call, end));
}

}  // namespace nemocube
