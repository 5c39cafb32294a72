#include "runtime/scheduler.h"

#include <algorithm>
#include <thread>

#include "counters/counters.h"
#include "instructions/system_call.h"
#include "machine/launch.h"
#include "machine/thread_object.h"
#include "runtime/api.h"
#include "timeline/recorder.h"

namespace emulator {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// The program may leave work alone for this long before a thread of the emulator runs it.
constexpr milliseconds patience{20};
constexpr std::uint32_t shortest_pause_us = 20, longest_pause_us = 500;

}  // namespace

Scheduler& Scheduler::instance() {
  static Scheduler* const scheduler =
      new Scheduler;  // never destroyed: threads and exit handlers use it to the end
  return *scheduler;
}

Scheduler::Scheduler() : errors_(static_cast<std::size_t>(device_count())), random_(base_seed()) {
  mark_used();
  for (int device = 0; device < device_count(); ++device) {
    Stream& stream = create_stream(device, true, 0);
    stream.legacy = true;
    legacy_.push_back(&stream);
  }
}

std::uint64_t Scheduler::random(std::uint64_t bound) {
  random_ += 0x9e3779b97f4a7c15;
  std::uint64_t x = random_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return (x ^ (x >> 31)) % bound;
}

Stream& Scheduler::create_stream(int device, bool blocking, int priority) {
  const std::lock_guard lock(mutex_);
  std::erase_if(streams_, [](const auto& s) { return s->destroyed && (!s->last || s->last->done()); });
  auto stream = std::make_unique<Stream>();
  stream->key = next_key_++;
  stream->device = device;
  stream->blocking = blocking;
  stream->priority = priority;
  streams_.push_back(std::move(stream));
  return *streams_.back();
}

void Scheduler::destroy_stream(Stream& stream) {
  const std::lock_guard lock(mutex_);
  stream.destroyed = true;
}

bool Scheduler::is_stream(const Stream* stream) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const auto& s) { return s.get() == stream && !s->destroyed; });
}

Stream& Scheduler::legacy_stream(int device) { return *legacy_[static_cast<std::size_t>(device)]; }

Stream& Scheduler::per_thread_stream(int device) {
  struct Streams {
    std::vector<Stream*> of_device = std::vector<Stream*>(static_cast<std::size_t>(device_count()));
    ~Streams() {
      for (Stream* stream : of_device) {
        if (stream) Scheduler::instance().destroy_stream(*stream);
      }
    }
  };
  Stream*& stream = ThreadObject<Streams>::get().of_device[static_cast<std::size_t>(device)];
  if (!stream) stream = &create_stream(device, true, 0);
  return *stream;
}

StreamKey Scheduler::new_key() {
  const std::lock_guard lock(mutex_);
  return next_key_++;
}

void Scheduler::link(const OperationPtr& operation, const OperationPtr& predecessor) {
  if (!predecessor || predecessor->done()) return;
  if (!predecessor->successors.empty() && predecessor->successors.back() == operation) return;
  predecessor->successors.push_back(operation);
  operation->predecessors.push_back(predecessor);
  ++operation->missing;
}

void Scheduler::submit(const OperationPtr& operation) {
  ++pending_;
  if (operation->missing == 0) {
    operation->state = Operation::State::ready;
    ready_.push_back(operation);
  }
  if (!threads_started_) start_threads();
  if (resting_ && !ready_.empty()) {
    resting_ = false;
    driven_ = steady_clock::now();
    work_came_.notify_one();
  }
}

OperationPtr Scheduler::append(Stream& stream, std::shared_ptr<Work> work, const Mark& after) {
  auto operation = std::make_shared<Operation>();
  operation->work = std::move(work);
  operation->device = stream.device;
  Clock others = host_clock_;         // what comes before the operation but for its own stream
  std::vector<OperationPtr> befores;  // operations of other streams
  link(operation, stream.last);
  if (stream.legacy) {
    for (const auto& other : streams_) {
      if (!other->blocking || other->legacy || other->device != stream.device) continue;
      link(operation, other->last);
      befores.push_back(other->last);
      join(others, other->clock);
    }
  } else if (stream.blocking) {
    const Stream& legacy = legacy_stream(stream.device);
    link(operation, legacy.last);
    befores.push_back(legacy.last);
    join(others, legacy.clock);
  }
  link(operation, after.operation);
  befores.push_back(after.operation);
  join(others, after.clock);
  operation->clock = stream.clock;
  join(operation->clock, others);
  operation->launches_dependents = operation->work && operation->work->launches_dependents();
  if (operation->work && operation->work->begins_early())
    let_begin_early(operation, stream, std::move(others));
  if (operation->work && operation->work->ordered()) {
    operation->id =
        OperationOrder::instance().add(stream.key, operation->clock, operation->work->name().c_str());
  }
  add_to_timeline(*operation, stream.key, stream.last, befores);
  stream.last = operation;
  stream.clock = operation->clock;
  return operation;
}

void Scheduler::add_to_timeline(Operation& operation, StreamKey stream, const OperationPtr& before,
                                const std::vector<OperationPtr>& after) {
  if (!timeline::recording()) return;
  timeline::Operation added;
  added.device = operation.device;
  added.stream = stream;
  if (operation.work) {
    added.name = operation.work->name();
    added.load.kind = operation.work->load();
  }
  added.before = before ? before->recorded : 0;
  for (const OperationPtr& other : after)
    if (other && other->recorded) added.after.push_back(other->recorded);
  operation.recorded = timeline::add_operation(std::move(added));
}

/// The part of the work before its griddepcontrol.wait comes after what the kernel before in the stream comes after, and after what
/// `clock` holds, but not after that kernel.
void Scheduler::let_begin_early(const OperationPtr& operation, Stream& stream, Clock clock) {
  const OperationPtr& primary = stream.last;
  if (!primary || !primary->launches_dependents || !checks_enabled() || counters_enabled()) return;
  if (!stream.early_key) stream.early_key = next_key_++;
  Clock before = primary->clock;
  --before[stream.key];
  join(clock, before);
  const std::string name = operation->work->name() + ", before griddepcontrol.wait,";
  operation->primary = primary;
  operation->early = OperationOrder::instance().add(stream.early_key, clock, name.c_str(), stream.key);
  operation->clock[stream.early_key] = clock[stream.early_key];
}

/// The operation that waits for this one alone and may begin before it has ended.
OperationPtr Scheduler::dependent_of(const OperationPtr& operation) const {
  for (const OperationPtr& next : operation->successors)
    if (next->early && next->missing == 1 && next->primary.lock() == operation) return next;
  return nullptr;
}

OperationPtr Scheduler::enqueue(Stream& stream, std::shared_ptr<Work> work, const Mark& after) {
  const std::lock_guard lock(mutex_);
  const timeline::HostStep::Kind call = work ? work->call() : timeline::HostStep::Kind::event;
  const OperationPtr operation = append(stream, std::move(work), after);
  timeline::add_step(call, {operation->recorded});
  submit(operation);
  return operation;
}

Mark Scheduler::record(Stream& stream, bool timed) {
  const std::lock_guard lock(mutex_);
  const OperationPtr operation = append(stream, nullptr, {});
  timeline::add_step(timed ? timeline::HostStep::Kind::timed_event : timeline::HostStep::Kind::event,
                     {operation->recorded});
  submit(operation);
  return {operation, operation->clock};
}

OperationPtr Scheduler::enqueue_graph(Stream& stream, const std::vector<Node>& nodes,
                                      const OperationPtr& previous) {
  const std::lock_guard lock(mutex_);
  const OperationPtr begin = append(stream, nullptr, previous ? Mark{previous, previous->clock} : Mark{});
  const OperationPtr end = std::make_shared<Operation>();
  end->device = stream.device;
  end->clock = begin->clock;
  link(end, begin);
  std::vector<OperationPtr> operations;
  operations.reserve(nodes.size());
  for (const Node& node : nodes) {
    auto operation = std::make_shared<Operation>();
    operation->work = node.work;
    operation->device = node.device;
    operation->clock = begin->clock;
    link(operation, begin);
    std::vector<OperationPtr> befores{node.wait.operation};
    for (const std::size_t i : node.after) {
      link(operation, operations[i]);
      befores.push_back(operations[i]);
      join(operation->clock, operations[i]->clock);
    }
    link(operation, node.wait.operation);
    join(operation->clock, node.wait.clock);
    if (node.work && node.work->ordered()) {
      operation->id = OperationOrder::instance().add(node.chain, operation->clock, node.work->name().c_str());
    }
    add_to_timeline(*operation, node.chain, begin, befores);
    if (node.marks) *node.marks = {operation, operation->clock};
    link(end, operation);
    join(end->clock, operation->clock);
    operations.push_back(std::move(operation));
  }
  add_to_timeline(*end, stream.key, begin, operations);
  std::vector<std::uint64_t> sent{begin->recorded, end->recorded};
  for (const OperationPtr& operation : operations) sent.push_back(operation->recorded);
  timeline::add_step(timeline::HostStep::Kind::graph, std::move(sent));
  stream.last = end;
  stream.clock = end->clock;
  submit(begin);
  for (const OperationPtr& operation : operations) submit(operation);
  submit(end);
  return end;
}

int Scheduler::device_error(int device) const {
  const std::lock_guard lock(mutex_);
  return errors_[static_cast<std::size_t>(device)];
}

void Scheduler::set_device_error(int device, int error) {
  const std::lock_guard lock(mutex_);
  int& kept = errors_[static_cast<std::size_t>(device)];
  if (kept == 0) kept = error;
}

void Scheduler::reset_device(int device) {
  wait_device(device);
  const std::lock_guard lock(mutex_);
  errors_[static_cast<std::size_t>(device)] = 0;
  for (const auto& stream : streams_) {
    if (stream->device == device && !stream->legacy) stream->destroyed = true;
  }
}

void Scheduler::stop() {
  Lock lock(mutex_);
  stopping_ = true;
  while (running_) changed_.wait(lock);
}

// Choosing and running.

bool Scheduler::all_done(const std::vector<OperationPtr>& operations) const {
  return std::all_of(operations.begin(), operations.end(),
                     [](const OperationPtr& o) { return !o || o->done(); });
}

void Scheduler::learn(const std::vector<OperationPtr>& operations) {
  for (const OperationPtr& operation : operations) {
    if (operation) join(host_clock_, operation->clock);
  }
  std::vector<std::uint64_t> recorded;
  for (const OperationPtr& operation : operations)
    if (operation && operation->recorded) recorded.push_back(operation->recorded);
  if (!recorded.empty()) timeline::add_step(timeline::HostStep::Kind::wait, std::move(recorded));
}

void Scheduler::want(const OperationPtr& operation) {
  std::vector<Operation*> stack{operation.get()};
  while (!stack.empty()) {
    Operation* const top = stack.back();
    stack.pop_back();
    if (top->wanted) continue;
    top->wanted = true;
    for (const OperationPtr& before : top->predecessors) stack.push_back(before.get());
  }
}

std::vector<OperationPtr> Scheduler::last_of(Stream& stream) {
  std::vector<OperationPtr> operations{stream.last};
  if (stream.legacy) {
    for (const auto& other : streams_) {
      if (other->blocking && other->device == stream.device) operations.push_back(other->last);
    }
  } else if (stream.blocking) {
    // A synchronisation waits for what an operation added now would wait for.
    operations.push_back(legacy_stream(stream.device).last);
  }
  return operations;
}

void Scheduler::wait(const std::vector<OperationPtr>& operations, bool learned) {
  Lock lock(mutex_);
  drive(lock, operations, learned);
}

void Scheduler::wait_stream(Stream& stream) {
  Lock lock(mutex_);
  drive(lock, last_of(stream), true);
}

void Scheduler::wait_device(int device, bool learned) {
  Lock lock(mutex_);
  std::vector<OperationPtr> operations;
  for (const auto& stream : streams_) {
    if (stream->device == device) operations.push_back(stream->last);
  }
  drive(lock, operations, learned);
}

void Scheduler::wait_all(bool learned) {
  Lock lock(mutex_);
  std::vector<OperationPtr> operations;
  for (const auto& stream : streams_) operations.push_back(stream->last);
  drive(lock, operations, learned);
}

bool Scheduler::query_stream(Stream& stream) {
  Lock lock(mutex_);
  return ask(lock, last_of(stream));
}

bool Scheduler::query(const Mark& mark) {
  Lock lock(mutex_);
  return ask(lock, {mark.operation});
}

bool Scheduler::ask(Lock& lock, const std::vector<OperationPtr>& operations) {
  // A query of what is done drives nothing: other work must not wait because a program asks again and again.
  if (!all_done(operations)) {
    if (!running_) {
      step(lock, Choice::any);
    } else {
      changed_.wait_for(lock, milliseconds(1));
    }
    driven_ = steady_clock::now();
  }
  if (!all_done(operations)) return false;
  learn(operations);
  flush_printf();
  return true;
}

void Scheduler::drive(Lock& lock, const std::vector<OperationPtr>& operations, bool learned) {
  for (const OperationPtr& operation : operations) {
    if (operation && !operation->done()) want(operation);
  }
  // How late the rest runs differs from wait to wait: not at all, mixed with what is wanted, or all of it first.
  constexpr Choice choices[] = {Choice::wanted_only, Choice::any, Choice::any, Choice::others_first};
  const Choice choice = choices[random(std::size(choices))];
  while (!all_done(operations)) {
    driven_ = steady_clock::now();
    if (running_) {
      changed_.wait(lock);
    } else {
      step(lock, choice);
    }
  }
  driven_ = steady_clock::now();
  if (learned) learn(operations);
  flush_printf();
}

void Scheduler::step(Lock& lock, Choice choice) {
  std::vector<std::size_t> candidates, preferred;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (ready_[i]->round >= round_) continue;
    candidates.push_back(i);
    if (choice == Choice::any || ready_[i]->wanted == (choice == Choice::wanted_only)) preferred.push_back(i);
  }
  if (candidates.empty()) {
    if (ready_.empty()) {  // a host function runs
      changed_.wait_for(lock, milliseconds(1));
      return;
    }
    ++round_;  // all of it waits for peers
    const std::chrono::microseconds pause(pause_us_);
    pause_us_ = std::min(2 * pause_us_, longest_pause_us);
    changed_.wait_for(lock, pause);
    return;
  }
  // When nothing that is wanted can go on, a peer may need what nobody wants here.
  const std::vector<std::size_t>& from = preferred.empty() ? candidates : preferred;
  const std::size_t index = from[random(from.size())];
  const OperationPtr operation = ready_[index];
  ready_[index] = ready_.back();
  ready_.pop_back();
  execute(lock, operation);
}

void Scheduler::execute(Lock& lock, const OperationPtr& operation) {
  operation->state = Operation::State::running;
  if (!operation->work) return complete(operation, 0);
  if (operation->work->on_host()) {
    host_queue_.push_back(operation);
    host_work_came_.notify_one();
    return;
  }
  const int error = errors_[static_cast<std::size_t>(operation->device)];
  const OperationPtr dependent = dependent_of(operation);
  running_ = true;
  lock.unlock();
  int result = 0;
  if (error) {
    operation->work->skip(error);
  } else {
    const auto begin_early = [](const OperationPtr& o) {
      if (!o->early) return;
      o->work->run_early(o->early, o->id);
      o->early = 0;
    };
    begin_early(operation);
    if (dependent) operation->work->overlap([&] { begin_early(dependent); });
    const timeline::Running running(operation->recorded);
    result = operation->work->run(operation->id);
  }
  if (result != work_again) operation->work.reset();
  lock.lock();
  running_ = false;
  if (result == work_again) {
    operation->round = round_;
    operation->state = Operation::State::ready;
    ready_.push_back(operation);
    changed_.notify_all();
  } else {
    complete(operation, result);
  }
}

void Scheduler::complete(const OperationPtr& operation, int result) {
  if (result > 0) {
    int& error = errors_[static_cast<std::size_t>(operation->device)];
    if (error == 0) error = result;
  }
  operation->state = Operation::State::done;
  operation->finished = steady_clock::now();
  operation->predecessors.clear();
  for (const OperationPtr& next : operation->successors) {
    if (--next->missing != 0) continue;
    next->state = Operation::State::ready;
    ready_.push_back(next);
  }
  operation->successors.clear();
  --pending_;
  pause_us_ = shortest_pause_us;
  changed_.notify_all();
}

// Threads.

void Scheduler::start_threads() {
  threads_started_ = true;
  driven_ = steady_clock::now();
  std::thread([this] { background(); }).detach();
  std::thread([this] { host_functions(); }).detach();
}

void Scheduler::background() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (ready_.empty()) {
      resting_ = true;
      work_came_.wait(lock);
    } else if (running_ || steady_clock::now() - driven_ < patience) {
      work_came_.wait_for(lock, patience);
    } else {
      step(lock, Choice::any);
    }
  }
}

void Scheduler::host_functions() {
  inside_host_function() = true;
  Lock lock(mutex_);
  for (;;) {
    if (host_queue_.empty()) {
      host_work_came_.wait(lock);
      continue;
    }
    const OperationPtr operation = host_queue_.front();
    host_queue_.pop_front();
    const int error = errors_[static_cast<std::size_t>(operation->device)];
    lock.unlock();
    int result = 0;
    if (error) {
      operation->work->skip(error);
    } else {
      result = operation->work->run(operation->id);
    }
    operation->work.reset();
    lock.lock();
    // The program's threads can learn from the function what came before it.
    join(host_clock_, operation->clock);
    complete(operation, result);
  }
}

}  // namespace emulator
