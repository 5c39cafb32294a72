#include "timeline/simulate.h"

#include <algorithm>
#include <stdexcept>

#include "timeline/simulation.h"

namespace emulator::timeline {
namespace {

/// Less than any duration that matters; sums of floating-point durations differ by less.
constexpr double tiny = 1e-15;
constexpr double never = std::numeric_limits<double>::infinity();

/// Something that takes time: an operation or a transfer.
struct Activity {
  std::size_t operation = none, meeting = none;
  double fixed = 0, work = 0;  ///< seconds left: whatever else runs; at full speed
  std::vector<Use> uses;
  double speed = 1;
  double seconds_left() const { return fixed > 0 ? fixed : work / speed; }
  bool done() const { return fixed <= 0 && work <= tiny; }
};

/// Time passes from one end of a step or an activity to the next.
class Run {
 public:
  Run(Simulation simulation, const Rates& rates) : made_(std::move(simulation)), rates_(rates) {}
  Result result();

 private:
  void begin_step(std::size_t thread);
  void end_step(std::size_t thread);
  void send(std::size_t node, std::size_t thread, std::size_t step);
  void begin(std::size_t node);
  void arrive(std::size_t node);
  void end(std::size_t node);
  void end_meeting(std::size_t meeting);
  void start(Activity activity) {
    activities_.push_back(std::move(activity));
    changed_ = true;
  }
  void share_resources();

  std::size_t next_thread() const;
  void pass(double seconds);
  void end_activities();
  void check_all_ended() const;

  Simulation made_;
  const Rates& rates_;
  std::map<std::size_t, std::vector<std::size_t>> waiters_;  ///< threads by the operation
  std::vector<Activity> activities_;
  bool changed_ = false;
  double now_ = 0;
};

void Run::begin_step(std::size_t index) {
  Thread& thread = made_.threads[index];
  if (thread.next == thread.steps->size()) return;
  const HostStep& step = (*thread.steps)[thread.next];
  thread.spans.push_back({now_, now_, -1});
  thread.causes.push_back(none);
  if (step.kind != HostStep::Kind::wait) {
    thread.end = now_ + host_seconds(step.kind, rates_);
    return;
  }
  thread.waits_for = 0;
  for (const std::uint64_t id : step.operations) {
    const std::size_t node = made_.node_of(thread.process, id);
    if (node == none || made_.nodes[node].span.end >= 0) continue;
    waiters_[node].push_back(index);
    ++thread.waits_for;
  }
  thread.waiting = thread.waits_for > 0;
  thread.end = now_;
}

void Run::end_step(std::size_t index) {
  Thread& thread = made_.threads[index];
  thread.spans.back().end = now_;
  const HostStep& done = (*thread.steps)[thread.next];
  if (done.kind != HostStep::Kind::wait) {
    for (const std::uint64_t id : done.operations)
      if (const std::size_t node = made_.node_of(thread.process, id); node != none)
        send(node, index, thread.next);
  }
  ++thread.next;
  begin_step(index);
}

void Run::send(std::size_t n, std::size_t thread, std::size_t step) {
  Node& node = made_.nodes[n];
  node.sent = true;
  if (node.missing) return;
  node.cause_thread = thread;
  node.cause_step = step;
  begin(n);
}

void Run::begin(std::size_t n) {
  Node& node = made_.nodes[n];
  node.span.ready = node.span.begin = now_;
  const Load& load = node.operation->load;
  switch (load.kind) {
    case Load::Kind::point:
    case Load::Kind::host:
      return end(n);
    case Load::Kind::exchange:
      return node.meetings.empty() ? end(n) : arrive(n);
    default:
      break;
  }
  const Need need = need_of(load, scale_of(*node.operation, rates_), rates_);
  Activity activity;
  activity.operation = n;
  activity.work = need.seconds;
  const auto use = [&](Resource resource, double share) {
    if (share > 0) activity.uses.push_back({node.device, resource, share});
  };
  use(Resource::multiprocessors, need.multiprocessors);
  use(Resource::dram, need.dram);
  use(Resource::upload_engine, load.kind == Load::Kind::upload ? 1 : 0);
  use(Resource::download_engine, load.kind == Load::Kind::download ? 1 : 0);
  start(std::move(activity));
}

void Run::arrive(std::size_t n) {
  const std::vector<std::size_t> own = made_.nodes[n].meetings;
  made_.nodes[n].span.begin = -1;
  for (const std::size_t m : own) {
    Meeting& meeting = made_.meetings[m];
    meeting.last = n;
    if (++meeting.arrived < meeting.members.size()) continue;
    for (const std::size_t member : meeting.members) {
      Node& node = made_.nodes[member];
      if (node.span.begin < 0) node.span.begin = now_;
    }
    meeting.begin = now_;
    Activity activity;
    activity.meeting = m;
    activity.fixed = meeting.latency;
    activity.work = meeting.work;
    activity.uses = meeting.uses;
    start(std::move(activity));
  }
}

void Run::end_meeting(std::size_t m) {
  made_.meetings[m].end = now_;
  for (const std::size_t member : made_.meetings[m].members) {
    Node& node = made_.nodes[member];
    if (--node.open_meetings) continue;
    node.partner = made_.meetings[m].last;
    end(member);
  }
}

void Run::end(std::size_t n) {
  made_.nodes[n].span.end = now_;
  for (const std::size_t next : made_.nodes[n].successors) {
    Node& node = made_.nodes[next];
    if (--node.missing || !node.sent) continue;
    node.cause = n;
    begin(next);
  }
  const auto waiting = waiters_.find(n);
  if (waiting == waiters_.end()) return;
  for (const std::size_t t : waiting->second) {
    Thread& thread = made_.threads[t];
    if (--thread.waits_for) continue;
    thread.waiting = false;
    thread.end = now_;
    thread.causes.back() = n;
  }
  waiters_.erase(n);
}

/// A resource that is wanted more than once is shared: all who use it become slower alike, on links by their weights.
void Run::share_resources() {
  std::map<std::pair<std::size_t, Resource>, double> wanted;
  for (const Activity& a : activities_)
    if (a.fixed <= 0)
      for (const Use& use : a.uses) wanted[{use.device, use.resource}] += use.share;
  for (Activity& a : activities_) {
    a.speed = 1;
    for (const Use& use : a.uses) {
      const double all = wanted[{use.device, use.resource}];
      const bool by_weight = is_link(use.resource) && all > 0;
      a.speed = std::min(a.speed, by_weight ? use.share / all : 1 / std::max(1.0, all));
    }
  }
  changed_ = false;
}

/// The thread whose step ends first; `none` where all have ended or wait.
std::size_t Run::next_thread() const {
  std::size_t first = none;
  double at = never;
  for (std::size_t t = 0; t < made_.threads.size(); ++t) {
    const Thread& thread = made_.threads[t];
    if (thread.next == thread.steps->size() || thread.waiting || thread.end >= at) continue;
    first = t;
    at = thread.end;
  }
  return first;
}

void Run::pass(double seconds) {
  for (Activity& a : activities_) {
    if (a.fixed > 0) {
      a.fixed -= seconds;
      if (a.fixed <= tiny) a.fixed = 0, changed_ = true;
    } else {
      a.work -= seconds * a.speed;
    }
  }
  now_ += seconds;
}

void Run::end_activities() {
  for (std::size_t i = 0; i < activities_.size();) {
    if (!activities_[i].done()) {
      ++i;
      continue;
    }
    const Activity done = std::move(activities_[i]);
    activities_.erase(activities_.begin() + static_cast<std::ptrdiff_t>(i));
    changed_ = true;
    done.meeting == none ? end(done.operation) : end_meeting(done.meeting);
  }
}

void Run::check_all_ended() const {
  for (const Node& node : made_.nodes)
    if (node.span.end < 0)
      throw std::runtime_error("'" + node.operation->name + "' of process " +
                               std::to_string(made_.processes[node.process].rank) + " never ends");
}

Result Run::result() {
  for (std::size_t t = 0; t < made_.threads.size(); ++t) begin_step(t);
  for (;;) {
    const std::size_t thread = next_thread();
    if (activities_.empty() && thread == none) break;
    const double step_end = thread == none ? never : made_.threads[thread].end;
    if (changed_) share_resources();
    double left = never;
    for (const Activity& a : activities_) left = std::min(left, a.seconds_left());
    pass(std::max(0.0, std::min(left, step_end - now_)));
    if (step_end - now_ <= tiny)
      end_step(thread);
    else
      end_activities();
  }
  check_all_ended();
  return outcome_of(std::move(made_), now_);
}

}  // namespace

Result simulate(const std::vector<Process>& processes, const Rates& rates, const Options& options) {
  return Run(connect(processes, rates, options), rates).result();
}

Exposed exposed_communication(const std::vector<Process>& processes, const Rates& rates) {
  const double free = simulate(processes, rates, {.transfers_free = true}).seconds;
  const Result apart = simulate(processes, rates, {.transfers_apart = true});
  Exposed exposed;
  exposed.seconds = simulate(processes, rates).seconds;
  exposed.exposed = exposed.seconds - free;
  exposed.least = std::max(apart.seconds, apart.link_bound) - free;
  return exposed;
}

}  // namespace emulator::timeline
