#include "nccl/unit.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "nccl/reduction.h"
#include "runtime/library.h"
#include "timeline/schedule.h"

namespace emulator::nccl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

/// A unit without progress for this long looks for a deadlock,
constexpr milliseconds suspicious_after{200}, look_again_after{50};
/// and tells after this long what it waits for.
constexpr seconds tell_after{30};
/// Time for the program to call ncclCommAbort after a rank is gone, before its stream ends with an error.
constexpr seconds time_to_abort{5};
/// Times that a unit looks again for peers in other processes before other work of this process gets its turn.
constexpr int tries = 16;

std::mutex& turnstile_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
/// Of the units with collectives on a device.
Turnstile& device_turnstile(int device) {
  static auto* const turnstiles = new std::map<int, Turnstile>;
  return (*turnstiles)[device];
}

std::uint32_t read_record(const WaitRecord& record, std::vector<Member>& targets, std::uint32_t& polls) {
  for (;;) {
    const std::uint32_t version = record.version;
    targets.clear();
    const int count = std::min(record.count.load(), WaitRecord::capacity);
    for (int i = 0; i < count; ++i) targets.push_back({record.communicators[i], record.ranks[i]});
    polls = record.polls;
    if (version % 2 == 0 && record.version == version) return version;
    sched_yield();
  }
}

timeline::Transfer::Kind transfer_kind(Kind kind) {
  using To = timeline::Transfer::Kind;
  switch (kind) {
    case Kind::all_reduce:
      return To::all_reduce;
    case Kind::reduce:
      return To::reduce;
    case Kind::broadcast:
      return To::broadcast;
    case Kind::all_gather:
      return To::all_gather;
    case Kind::reduce_scatter:
      return To::reduce_scatter;
    case Kind::all_to_all:
      return To::all_to_all;
    case Kind::gather:
      return To::gather;
    case Kind::scatter:
      return To::scatter;
    case Kind::send:
    case Kind::receive:
      break;
  }
  return To::message;
}

bool same(const Member& a, const Member& b) { return a.communicator == b.communicator && a.rank == b.rank; }

}  // namespace

Unit::Unit(std::shared_ptr<Communicator> communicator, std::vector<Request> requests, bool captured)
    : communicator_(std::move(communicator)),
      requests_(std::move(requests)),
      captured_(captured),
      collective_(
          std::any_of(requests_.begin(), requests_.end(), [](const Request& r) { return r.collective(); })) {}

Unit::~Unit() {
  if (captured_ || complete_) return;
  // The device has failed before: the others would wait for this rank.
  if (!communicator_->aborted()) {
    communicator_->fail(ncclRemoteError, "rank " + std::to_string(communicator_->rank()) + " dropped its " +
                                             what_is_done() + " after an error of its device");
  }
  finish();
}

void Unit::enqueue(const std::shared_ptr<Unit>& unit, cudaStream_t stream) {
  // The order of the turnstiles is the order of the streams.
  static std::mutex order;
  const std::lock_guard lock(order);
  Communicator& communicator = *unit->communicator_;
  if (!unit->captured_) {
    const std::lock_guard turnstile_lock(turnstile_mutex());
    ++communicator.outstanding;
    communicator.turnstile.waiting.push_back(unit.get());
    if (unit->collective_) device_turnstile(communicator.device()).waiting.push_back(unit.get());
  }
  using Holder = std::shared_ptr<Unit>;
  const char* const what = unit->requests_.size() == 1 ? unit->requests_[0].name() : "ncclGroup";
  const int error = cuda_emulator_enqueue(
      stream, what,
      [](void* data, unsigned operation) { return (*static_cast<Holder*>(data))->run(operation); },
      [](void* data) { delete static_cast<Holder*>(data); }, new Holder(unit));
  if (error == cudaSuccess) return;
  unit->finish();
  throw Failure{ncclUnhandledCudaError, std::string(what) + ": the stream takes no work: " +
                                            cudaGetErrorString(static_cast<cudaError_t>(error))};
}

int Unit::run(unsigned operation) {
  if (communicator_->aborted()) {
    finish();
    return cuda_emulator_done;
  }
  const ncclResult_t error = communicator_->error();
  if (error != ncclSuccess) return end_with_error(error);
  try {
    if (!begun_) {
      if (!enter()) return blocked() ? run(operation) : cuda_emulator_again;
      begin(operation);
    }
    for (int i = 0; i < tries; ++i) {
      if (advance()) {
        finish();
        return cuda_emulator_done;
      }
      sched_yield();
    }
    return blocked() ? run(operation) : cuda_emulator_again;
  } catch (const Failure& failure) {
    communicator_->fail(failure.result, failure.message);
    return end_with_error(communicator_->error());
  }
}

/// Whether it is this unit's turn.
bool Unit::enter() {
  const std::lock_guard lock(turnstile_mutex());
  Turnstile &of_communicator = communicator_->turnstile,
            &of_device = device_turnstile(communicator_->device());
  const bool waits = !captured_;
  if (of_communicator.admits(this, waits) && (!collective_ || of_device.admits(this, waits))) {
    of_communicator.enter(this, waits);
    if (collective_) of_device.enter(this, waits);
    targets_.clear();
    last_move_ = steady_clock::now();
    return true;
  }
  // Behind a collective of another communicator this rank waits for what that one waits for.
  targets_.clear();
  const bool next_here =
      !of_communicator.inside &&
      (captured_ || (!of_communicator.waiting.empty() && of_communicator.waiting.front() == this));
  if (next_here) {
    if (of_device.inside) targets_ = of_device.inside->targets_;
    publish_wait(targets_);
  }
  return false;
}

/// All requests of the unit. A collective has its number among those of the communicator; messages are counted by the timeline.
void Unit::add_to_timeline() const {
  std::uint64_t number = communicator_->calls;
  const int rank = communicator_->rank();
  for (const Request& r : requests_) {
    const bool sends = r.kind == Kind::send;
    const int source = sends ? rank : r.root, target = sends ? r.root : rank;
    const std::string name = describe(r) + (communicator_->label.empty() ? "" : ", " + communicator_->label);
    cuda_emulator_transfer(static_cast<int>(transfer_kind(r.kind)), communicator_->segment().hash(), rank,
                           communicator_->ranks(), source, target, sends, r.collective() ? ++number : 0,
                           static_cast<double>(r.count * type_bytes(r.type)), name.c_str());
  }
}

/// Checks the buffers and records what is read and written.
void Unit::begin(unsigned operation) {
  const int rank = communicator_->rank(), ranks = communicator_->ranks();
  buffers_.clear();
  const auto address = [&](const Request& request, const void* pointer, std::size_t bytes) -> void* {
    if (bytes == 0) return nullptr;
    void* const host = cuda_emulator_host(pointer, bytes, request.name());
    if (host) return host;
    throw Failure{ncclInvalidUsage, "rank " + std::to_string(rank) + ": a buffer of " + describe(request) +
                                        " is not in device memory"};
  };
  for (const Request& request : requests_) {
    const std::size_t send = request.send_bytes(rank, ranks), receive = request.receive_bytes(rank, ranks);
    buffers_.emplace_back(address(request, request.send, send), address(request, request.receive, receive));
    if (send) cuda_emulator_touch(operation, request.send, send, 0, request.name());
    if (request.device_factor) {
      const std::size_t bytes = type_bytes(request.type);
      address(request, request.device_factor, bytes);
      cuda_emulator_touch(operation, request.device_factor, bytes, 0, request.name());
    }
  }
  for (const Request& request : requests_) {
    const std::size_t receive = request.receive_bytes(rank, ranks);
    if (receive) cuda_emulator_touch(operation, request.receive, receive, 1, request.name());
  }
  transfers_.clear();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i].collective()) continue;
    transfers_.emplace_back(*communicator_, requests_[i], buffers_[i].first, buffers_[i].second);
  }
  add_to_timeline();
  transferred_.assign(transfers_.size(), false);
  next_collective_ = 0;
  begun_ = true;
}

/// Moves what can be moved; whether all is done.
bool Unit::advance() {
  bool moved = false, done = true;
  std::vector<int> waits_for;
  for (;;) {
    if (!current_) {
      while (next_collective_ < requests_.size() && !requests_[next_collective_].collective())
        ++next_collective_;
      if (next_collective_ == requests_.size()) break;
      Request request = requests_[next_collective_];
      const auto [send, receive] = buffers_[next_collective_];
      if (request.device_factor) {
        const std::size_t bytes = type_bytes(request.type);
        std::memcpy(&request.factor, cuda_emulator_host(request.device_factor, bytes, request.name()), bytes);
      }
      current_.emplace(*communicator_, request, send, receive);
      ++next_collective_;
    }
    const Progress progress = current_->advance(waits_for);
    moved |= progress.moved;
    if (!progress.done) {
      done = false;
      break;
    }
    current_.reset();
  }
  // Messages between two ranks keep their order: only the first that is not done moves.
  const auto ranks = static_cast<std::size_t>(communicator_->ranks());
  std::vector<bool> sending(ranks), receiving(ranks);
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    if (transferred_[i]) continue;
    const Request& request = transfers_[i].request();
    std::vector<bool>& busy = request.kind == Kind::send ? sending : receiving;
    const auto peer = static_cast<std::size_t>(request.root);
    if (busy[peer]) {
      done = false;
      continue;
    }
    const Progress progress = transfers_[i].advance(waits_for);
    moved |= progress.moved || progress.done;
    transferred_[i] = progress.done;
    busy[peer] = !progress.done;
    done &= progress.done;
  }
  if (moved) {
    last_move_ = steady_clock::now();
    told_of_wait_ = false;
  }
  {
    const std::lock_guard lock(turnstile_mutex());
    targets_.clear();
    for (const int r : waits_for) targets_.push_back({communicator_->segment().hash(), r});
  }
  if (moved) publish_wait({});
  return done;
}

/// After a try without success: tells others, looks at them. Returns true when an error is there to be handled.
bool Unit::blocked() {
  if (!begun_) return false;
  publish_wait(targets_);
  communicator_->watch([&] {
    advance();
    return ranks_waited_for();
  });
  const auto now = steady_clock::now();
  if (now - last_move_ > suspicious_after && now - last_look_ > look_again_after) {
    last_look_ = now;
    look_for_deadlock();
  }
  if (now - last_move_ > tell_after && !told_of_wait_) {
    told_of_wait_ = true;
    std::string ranks;
    for (const int r : ranks_waited_for()) ranks += " " + std::to_string(r);
    cuda_emulator_report(2, "nccl-wait",
                         ("rank " + std::to_string(communicator_->rank()) + " has waited 30 seconds in " +
                          what_is_done() + " for rank" + ranks)
                             .c_str());
  }
  return communicator_->error() != ncclSuccess;
}

std::vector<int> Unit::ranks_waited_for() const {
  std::vector<int> ranks;
  for (const Member& member : targets_) ranks.push_back(member.rank);
  return ranks;
}

void Unit::publish_wait(const std::vector<Member>& targets) {
  WaitRecord& record = communicator_->mine().wait;
  const auto count = std::min<int>(static_cast<int>(targets.size()), WaitRecord::capacity);
  bool equal = record.count == count;
  for (int i = 0; equal && i < count; ++i) {
    const Member& target = targets[static_cast<std::size_t>(i)];
    equal = record.communicators[i] == target.communicator && record.ranks[i] == target.rank;
  }
  if (equal) {
    ++record.polls;
    return;
  }
  ++record.version;
  record.count = count;
  for (int i = 0; i < count; ++i) {
    const Member& target = targets[static_cast<std::size_t>(i)];
    record.communicators[i] = target.communicator;
    record.ranks[i] = target.rank;
  }
  record.polls = 0;
  ++record.version;
}

/// Every rank needs all that it waits for. So ranks that wait in a circle wait for ever, once each of them has looked again and found
/// nothing new. All communicators of the circle fail: each rank may be at work on another one of them.
void Unit::look_for_deadlock() {
  std::vector<Seen> path;
  std::vector<Member> visited;
  const auto follow = [&](const auto& self, const Member& member) -> bool {
    const auto on_path =
        std::find_if(path.begin(), path.end(), [&](const Seen& s) { return same(s.member, member); });
    if (on_path != path.end()) {
      path.erase(path.begin(), on_path);
      return true;
    }
    if (std::any_of(visited.begin(), visited.end(), [&](const Member& m) { return same(m, member); }))
      return false;
    visited.push_back(member);
    const std::shared_ptr<Communicator> communicator = find_communicator(member.communicator);
    if (!communicator) return false;
    std::vector<Member> targets;
    std::uint32_t polls = 0;
    const std::uint32_t version = read_record(communicator->area(member.rank).wait, targets, polls);
    path.push_back({member, version, polls});
    for (const Member& target : targets) {
      if (self(self, target)) return true;
    }
    path.pop_back();
    return false;
  };
  if (!follow(follow, {communicator_->segment().hash(), communicator_->rank()})) {
    suspected_.clear();
    return;
  }
  const auto order = [](const Seen& a, const Seen& b) {
    return std::pair{a.member.communicator, a.member.rank} < std::pair{b.member.communicator, b.member.rank};
  };
  std::vector<Seen> circle = path;
  std::sort(circle.begin(), circle.end(), order);
  bool unchanged = circle.size() == suspected_.size(), looked_again = true;
  for (std::size_t i = 0; unchanged && i < circle.size(); ++i) {
    unchanged = same(circle[i].member, suspected_[i].member) && circle[i].version == suspected_[i].version;
    looked_again &= circle[i].polls - suspected_[i].polls >= 2;
  }
  if (!unchanged) {
    suspected_ = circle;
    return;
  }
  if (!looked_again) return;
  std::string text =
      "deadlock: rank " + std::to_string(communicator_->rank()) + " is in " + what_is_done() + "; ";
  for (std::size_t i = 0; i < path.size(); ++i) {
    const Member &waiter = path[i].member, &target = path[(i + 1) % path.size()].member;
    text += (i ? ", " : "") + std::string("rank ") + std::to_string(waiter.rank) + " waits for rank " +
            std::to_string(target.rank);
    if (waiter.communicator != target.communicator) text += " of another communicator";
  }
  text += ". The ranks call in different orders, or calls that need one another are not in one group";
  std::vector<std::shared_ptr<Communicator>> communicators;
  for (const Seen& seen : path) {
    auto communicator = find_communicator(seen.member.communicator);
    const bool fresh =
        std::find(communicators.begin(), communicators.end(), communicator) == communicators.end();
    if (communicator && fresh) communicators.push_back(std::move(communicator));
  }
  Communicator::fail(communicators, ncclInvalidUsage, text);
}

std::string Unit::what_is_done() const {
  std::string text;
  for (std::size_t i = 0; i < requests_.size() && i < 4; ++i)
    text += (i ? ", " : "") + describe(requests_[i]);
  if (requests_.size() > 4) text += " and " + std::to_string(requests_.size() - 4) + " more";
  return text;
}

void Unit::finish() {
  if (communicator_->ready()) publish_wait({});
  {
    const std::lock_guard lock(turnstile_mutex());
    communicator_->turnstile.remove(this);
    device_turnstile(communicator_->device()).remove(this);
  }
  current_.reset();
  transfers_.clear();
  targets_.clear();
  suspected_.clear();
  begun_ = false;
  if (!captured_ && !complete_) --communicator_->outstanding;
  complete_ = true;
}

/// A rank that is gone leaves the program time to abort the communicator. What the program did wrong ends the device's work at once.
int Unit::end_with_error(ncclResult_t error) {
  const std::string text = communicator_->message();
  communicator_->report_error();
  if (error == ncclRemoteError) {
    const auto now = steady_clock::now();
    if (error_seen_ == steady_clock::time_point{}) error_seen_ = now;
    if (now - error_seen_ < time_to_abort) return cuda_emulator_again;
    cuda_emulator_report(0, "nccl-remote",
                         ("rank " + std::to_string(communicator_->rank()) + " was left in " + what_is_done() +
                          ": the program did not abort the communicator (" + text + ")")
                             .c_str());
  }
  finish();
  return cuda_emulator_failed;
}

}  // namespace emulator::nccl
