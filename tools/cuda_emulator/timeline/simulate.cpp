#include "timeline/simulate.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <tuple>

namespace emulator::timeline {
namespace {

/// Less than any duration that matters; sums of floating-point durations differ by less.
constexpr double tiny = 1e-15;

/// Resources of a device, each with a capacity of 1. Those from nvlink_out on are directions of links.
enum Resource : std::uint8_t {
  multiprocessors,
  dram,
  upload_engine,
  download_engine,
  nvlink_out,
  nvlink_in,
  network_out,
  network_in,
  resources
};

struct Use {
  std::size_t resource;
  double
      share;  ///< of it that is used at full speed; of a link, the weight among those who use it at the same time
};

/// A transfer with the operations of the ranks that take part.
struct Meeting {
  Transfer transfer;
  Rates::Scale scale;
  std::vector<std::size_t> members;  ///< operations, in the order of the record
  std::size_t arrived = 0;
  std::size_t last = none;      ///< the operation that arrived last
  double begin = -1, end = -1;  ///< of the transfer itself
  bool message() const { return transfer.kind == Transfer::Kind::message; }
};

/// Something that takes time: an operation or a transfer.
struct Activity {
  std::size_t operation = none, meeting = none;
  double fixed = 0, work = 0;  ///< seconds left: whatever else runs; at full speed
  std::vector<Use> uses;
  double speed = 1;
};

struct Node {
  const Operation* operation = nullptr;
  std::size_t process = 0, device = 0;  ///< indices
  std::size_t missing = 0;
  bool sent = false;
  std::vector<std::size_t> successors, meetings;
  std::size_t open_meetings = 0;
  Span span;
  // What made it ready: an operation, or a step of a thread.
  std::size_t cause = none, cause_thread = none, cause_step = none;
  std::size_t partner = none;  ///< of an exchange: the operation that its last transfer waited for
};

struct Thread {
  std::size_t process = 0;
  const std::vector<HostStep>* steps = nullptr;
  std::size_t next = 0;
  double end = 0;  ///< of the step `next`, unless it waits
  std::size_t waits_for = 0;
  std::vector<Span> spans;
  std::vector<std::size_t> causes;  ///< of steps that had to wait: the last operation
  bool waiting = false;
};

class Simulation {
 public:
  Simulation(const std::vector<Process>& processes, const Rates& rates, const Options& options)
      : processes_(processes), rates_(rates), options_(options) {
    place_operations();
    for (std::size_t p = 0; p < processes_.size(); ++p) connect(p);
    gather_transfers();
  }
  Result run();

 private:
  void place_operations();
  void connect(std::size_t process);
  void gather_transfers();
  void follow(std::size_t before, std::size_t after) {
    nodes_[before].successors.push_back(after);
    ++nodes_[after].missing;
  }

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

  int ranks_of_node(const Meeting& meeting) const;
  bool one_node(const Meeting& meeting) const {
    return ranks_of_node(meeting) == static_cast<int>(meeting.members.size());
  }
  int rank_in(const Meeting& meeting, std::size_t member) const;
  double link_seconds_of(const Meeting& meeting) const {
    return link_seconds(meeting.transfer, meeting.scale, ranks_of_node(meeting), rates_);
  }
  std::size_t resource(std::size_t device, Resource which) const { return device * resources + which; }
  std::vector<Use> links(const Meeting& meeting) const;
  double seconds_apart(const Meeting& meeting) const;

  void mark_critical(Result& result);
  std::vector<DeviceTimes> device_times(double seconds) const;
  double link_bound() const;

  const std::vector<Process>& processes_;
  const Rates& rates_;
  const Options options_;
  std::vector<Node> nodes_;
  std::vector<std::size_t> first_;  ///< node of each process's first operation
  std::vector<std::map<std::uint64_t, std::size_t>> by_id_;
  std::vector<std::pair<std::size_t, int>> devices_;  ///< process and number
  std::vector<Meeting> meetings_;
  std::vector<Thread> threads_;
  std::map<std::size_t, std::vector<std::size_t>> waiters_;  ///< threads by the operation
  std::vector<Activity> activities_;
  bool changed_ = false;
  double now_ = 0;
};

void Simulation::place_operations() {
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    first_.push_back(nodes_.size());
    by_id_.emplace_back();
    std::map<int, std::size_t> device_of;
    for (const Operation& operation : processes_[p].operations) {
      const auto [found, fresh] = device_of.try_emplace(operation.device, devices_.size());
      if (fresh) devices_.emplace_back(p, operation.device);
      by_id_[p][operation.id] = nodes_.size();
      Node node;
      node.operation = &operation;
      node.process = p;
      node.device = found->second;
      nodes_.push_back(std::move(node));
    }
    for (const auto& [id, steps] : processes_[p].threads) {
      Thread thread;
      thread.process = p;
      thread.steps = &steps;
      threads_.push_back(std::move(thread));
    }
  }
}

/// Edges between the operations of a process. With transfers_apart a transfer waits for a node of its own, `gate`, that comes after
/// what was before the transfer in its stream but not after earlier transfers.
void Simulation::connect(std::size_t p) {
  const auto& operations = processes_[p].operations;
  struct Gate {
    std::vector<std::size_t> waits;  ///< for what transfers of the stream wait
  };
  std::map<std::uint64_t, Gate> gates;
  std::map<std::uint64_t, std::size_t> last_of_communicator;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    const std::size_t node = first_[p] + i;
    std::vector<std::size_t> before;
    const auto add = [&](std::uint64_t id) {
      const auto found = by_id_[p].find(id);  // one that ended before the record began is not there
      if (found == by_id_[p].end() || found->second == node) return;
      if (std::find(before.begin(), before.end(), found->second) == before.end())
        before.push_back(found->second);
    };
    for (const std::uint64_t id : operation.after) add(id);
    if (options_.transfers_apart) {
      Gate& gate = gates[operation.stream];
      if (operation.load.kind == Load::Kind::exchange) {
        gate.waits.insert(gate.waits.end(), before.begin(), before.end());
        for (const std::size_t b : gate.waits) follow(b, node);
        continue;
      }
      if (operation.load.kind == Load::Kind::point) {
        gate.waits.insert(gate.waits.end(), before.begin(), before.end());
      } else {
        gate.waits = {node};
      }
      std::sort(gate.waits.begin(), gate.waits.end());
      gate.waits.erase(std::unique(gate.waits.begin(), gate.waits.end()), gate.waits.end());
    }
    add(operation.before);
    if (!options_.transfers_apart && !operation.transfers.empty()) {
      // NCCL does the operations of a communicator one after the other, on whatever streams.
      const auto [last, first] =
          last_of_communicator.try_emplace(operation.transfers.front().communicator, node);
      if (!first) {
        add(operations[last->second - first_[p]].id);
        last->second = node;
      }
    }
    for (const std::size_t b : before) follow(b, node);
  }
}

void Simulation::gather_transfers() {
  using Key = std::tuple<std::uint64_t, bool, int, int, std::uint64_t>;
  std::map<Key, std::size_t> known;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const Operation& operation = *nodes_[n].operation;
    for (const Transfer& t : operation.transfers) {
      const bool message = t.kind == Transfer::Kind::message;
      const Key key{t.communicator, message, message ? t.source : 0, message ? t.target : 0, t.number};
      const auto [found, fresh] = known.try_emplace(key, meetings_.size());
      if (fresh) {
        meetings_.emplace_back();
        meetings_.back().transfer = t;
        meetings_.back().scale = scale_of(operation, rates_);
      }
      meetings_[found->second].members.push_back(n);
      nodes_[n].meetings.push_back(found->second);
      ++nodes_[n].open_meetings;
    }
  }
}

/// Devices are numbered through all processes in the order of their ranks; a node holds as many as rates_ says.
int Simulation::ranks_of_node(const Meeting& meeting) const {
  std::map<int, int> count;
  const int size = static_cast<int>(rates_.devices_of_node);
  int most = 0;
  for (const std::size_t m : meeting.members)
    most = std::max(most, ++count[static_cast<int>(nodes_[m].device) / size]);
  return most;
}

int Simulation::rank_in(const Meeting& meeting, std::size_t member) const {
  for (const Transfer& own : nodes_[member].operation->transfers)
    if (own.communicator == meeting.transfer.communicator) return own.rank;
  return 0;
}

std::vector<Use> Simulation::links(const Meeting& meeting) const {
  std::vector<Use> uses;
  const bool to_itself = meeting.message() && meeting.transfer.source == meeting.transfer.target;
  if (options_.transfers_apart || to_itself) return uses;
  const bool inside = one_node(meeting);
  for (const std::size_t member : meeting.members) {
    const std::size_t device = nodes_[member].device;
    const int rank = rank_in(meeting, member);
    // A call has the weight 1 in each direction, which its messages share.
    const auto weight = [&](bool sends) {
      if (!meeting.message()) return 1.0;
      int messages = 0;
      for (const Transfer& t : nodes_[member].operation->transfers)
        messages += t.source != t.target && rank == (sends ? t.source : t.target);
      return 1.0 / messages;
    };
    if (!meeting.message() || rank == meeting.transfer.source)
      uses.push_back({resource(device, inside ? nvlink_out : network_out), weight(true)});
    if (!meeting.message() || rank == meeting.transfer.target)
      uses.push_back({resource(device, inside ? nvlink_in : network_in), weight(false)});
  }
  return uses;
}

/// Messages of one call share the links of its rank in any case: of a message, the longer of what its call sends and what its
/// partner's call receives.
double Simulation::seconds_apart(const Meeting& meeting) const {
  if (!meeting.message()) return link_seconds_of(meeting);
  const bool inside = one_node(meeting);
  double longest = 0;
  for (const std::size_t member : meeting.members) {
    const bool sends = rank_in(meeting, member) == meeting.transfer.source;
    double sum = 0;
    for (const std::size_t m : nodes_[member].meetings) {
      const Meeting& other = meetings_[m];
      if (!other.message() || one_node(other) != inside) continue;
      const int end = sends ? other.transfer.source : other.transfer.target;
      if (end == rank_in(meeting, member)) sum += link_seconds_of(other);
    }
    longest = std::max(longest, sum);
  }
  return longest;
}

void Simulation::begin_step(std::size_t index) {
  Thread& thread = threads_[index];
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
    const auto found = by_id_[thread.process].find(id);
    if (found == by_id_[thread.process].end() || nodes_[found->second].span.end >= 0) continue;
    waiters_[found->second].push_back(index);
    ++thread.waits_for;
  }
  thread.waiting = thread.waits_for > 0;
  thread.end = now_;
}

void Simulation::end_step(std::size_t index) {
  const std::size_t step = threads_[index].next;
  threads_[index].spans.back().end = now_;
  const HostStep& done = (*threads_[index].steps)[step];
  if (done.kind != HostStep::Kind::wait) {
    for (const std::uint64_t id : done.operations) {
      const auto found = by_id_[threads_[index].process].find(id);
      if (found != by_id_[threads_[index].process].end()) send(found->second, index, step);
    }
  }
  ++threads_[index].next;
  begin_step(index);
}

void Simulation::send(std::size_t n, std::size_t thread, std::size_t step) {
  Node& node = nodes_[n];
  node.sent = true;
  if (node.missing) return;
  node.cause_thread = thread;
  node.cause_step = step;
  begin(n);
}

void Simulation::begin(std::size_t n) {
  Node& node = nodes_[n];
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
  if (need.multiprocessors > 0)
    activity.uses.push_back({resource(node.device, multiprocessors), need.multiprocessors});
  if (need.dram > 0) activity.uses.push_back({resource(node.device, dram), need.dram});
  if (load.kind == Load::Kind::upload) activity.uses.push_back({resource(node.device, upload_engine), 1});
  if (load.kind == Load::Kind::download) activity.uses.push_back({resource(node.device, download_engine), 1});
  start(std::move(activity));
}

void Simulation::arrive(std::size_t n) {
  const std::vector<std::size_t> own = nodes_[n].meetings;
  nodes_[n].span.begin = -1;
  for (const std::size_t m : own) {
    Meeting& meeting = meetings_[m];
    meeting.last = n;
    if (++meeting.arrived < meeting.members.size()) continue;
    for (const std::size_t member : meeting.members) {
      Node& node = nodes_[member];
      if (node.span.begin < 0) node.span.begin = now_;
    }
    meeting.begin = now_;
    Activity activity;
    activity.meeting = m;
    if (!options_.transfers_free) {
      activity.fixed = one_node(meeting) ? rates_.nvlink_seconds : rates_.network_seconds;
      activity.work = options_.transfers_apart ? seconds_apart(meeting) : link_seconds_of(meeting);
      activity.uses = links(meeting);
    }
    start(std::move(activity));
  }
}

void Simulation::end_meeting(std::size_t m) {
  meetings_[m].end = now_;
  for (const std::size_t member : meetings_[m].members) {
    Node& node = nodes_[member];
    if (--node.open_meetings) continue;
    node.partner = meetings_[m].last;
    end(member);
  }
}

void Simulation::end(std::size_t n) {
  nodes_[n].span.end = now_;
  for (const std::size_t next : nodes_[n].successors) {
    Node& node = nodes_[next];
    if (--node.missing || !node.sent) continue;
    node.cause = n;
    begin(next);
  }
  const auto waiting = waiters_.find(n);
  if (waiting == waiters_.end()) return;
  for (const std::size_t t : waiting->second) {
    Thread& thread = threads_[t];
    if (--thread.waits_for) continue;
    thread.waiting = false;
    thread.end = now_;
    thread.causes.back() = n;
  }
  waiters_.erase(n);
}

/// A resource that is wanted more than once is shared: all who use it become slower alike, on links by their weights.
void Simulation::share_resources() {
  std::map<std::size_t, double> load;
  for (const Activity& a : activities_)
    if (a.fixed <= 0)
      for (const Use& use : a.uses) load[use.resource] += use.share;
  for (Activity& a : activities_) {
    a.speed = 1;
    for (const Use& use : a.uses) {
      const bool link = use.resource % resources >= nvlink_out;
      const double all = load[use.resource];
      a.speed = std::min(a.speed, link && all > 0 ? use.share / all : 1 / std::max(1.0, all));
    }
  }
  changed_ = false;
}

Result Simulation::run() {
  for (std::size_t t = 0; t < threads_.size(); ++t) begin_step(t);
  for (;;) {
    // The next end: of a step of a thread, or of an activity.
    std::size_t thread = none;
    double at = std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      if (threads_[t].next == threads_[t].steps->size() || threads_[t].waiting) continue;
      if (threads_[t].end < at) at = threads_[t].end, thread = t;
    }
    if (changed_) share_resources();
    double left = std::numeric_limits<double>::infinity();
    for (const Activity& a : activities_) left = std::min(left, a.fixed > 0 ? a.fixed : a.work / a.speed);
    if (activities_.empty() && thread == none) break;
    const double step = std::max(0.0, std::min(left, at - now_));
    for (Activity& a : activities_) {
      if (a.fixed > 0) {
        a.fixed -= step;
        if (a.fixed <= tiny) a.fixed = 0, changed_ = true;
      } else {
        a.work -= step * a.speed;
      }
    }
    now_ += step;
    if (thread != none && at - now_ <= tiny) {
      end_step(thread);
      continue;
    }
    for (std::size_t i = 0; i < activities_.size();) {
      if (activities_[i].fixed > 0 || activities_[i].work > tiny) {
        ++i;
        continue;
      }
      const Activity done = std::move(activities_[i]);
      activities_.erase(activities_.begin() + static_cast<std::ptrdiff_t>(i));
      changed_ = true;
      done.meeting == none ? end(done.operation) : end_meeting(done.meeting);
    }
  }
  for (const Node& node : nodes_)
    if (node.span.end < 0)
      throw std::runtime_error("'" + node.operation->name + "' of process " +
                               std::to_string(processes_[node.process].rank) + " never ends");
  Result result;
  result.seconds = now_;
  mark_critical(result);
  for (std::size_t p = 0; p < processes_.size(); ++p) {
    result.operations.emplace_back();
    for (std::size_t i = 0; i < processes_[p].operations.size(); ++i)
      result.operations.back().push_back(nodes_[first_[p] + i].span);
    result.steps.emplace_back();
  }
  for (Thread& thread : threads_) result.steps[thread.process].push_back(std::move(thread.spans));
  result.devices = device_times(now_);
  result.link_bound = link_bound();
  for (const Meeting& m : meetings_)
    if (m.members.size() < (m.message() ? 2u : static_cast<std::size_t>(m.transfer.ranks)))
      ++result.incomplete_transfers;
  return result;
}

/// From the last end back to the beginning.
void Simulation::mark_critical(Result& result) {
  std::size_t n = none, thread = none, step = none;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (n == none || nodes_[i].span.end > nodes_[n].span.end) n = i;
  const auto walk_host = [&] {  // to the operation that the thread waited for last
    while (step != none) {
      Span& span = threads_[thread].spans[step];
      span.critical = true;
      const std::size_t cause = threads_[thread].causes[step];
      if (cause != none) return cause;
      result.critical.host += span.end - span.begin;
      if (step == 0) break;
      --step;
    }
    return none;
  };
  while (n != none) {
    Node* node = &nodes_[n];
    node->span.critical = true;
    const Load::Kind kind = node->operation->load.kind;
    if (kind == Load::Kind::exchange && node->partner != none) {
      const double ready = nodes_[node->partner].span.ready;
      result.critical.transferring += node->span.end - ready;
      node = &nodes_[node->partner];
      node->span.critical = true;
    } else {
      double& sum = kind == Load::Kind::upload || kind == Load::Kind::download ? result.critical.copying
                                                                               : result.critical.computing;
      sum += node->span.end - node->span.begin;
    }
    n = node->cause;
    if (n != none || node->cause_thread == none) continue;
    thread = node->cause_thread;
    step = node->cause_step;
    n = walk_host();
  }
}

std::vector<DeviceTimes> Simulation::device_times(double seconds) const {
  enum Doing : std::uint8_t { computes, transfers, waits, copies, kinds };
  struct Change {
    double time;
    Doing doing;
    int by;
  };
  std::vector<std::vector<Change>> changes(devices_.size());
  const auto add = [&](std::size_t device, double begin, double end, Doing doing) {
    if (end - begin <= 0) return;
    changes[device].push_back({begin, doing, 1});
    changes[device].push_back({end, doing, -1});
  };
  for (const Node& node : nodes_) {
    switch (node.operation->load.kind) {
      case Load::Kind::point:
      case Load::Kind::host:
        break;
      case Load::Kind::exchange:
        add(node.device, node.span.ready, node.span.end, waits);
        break;
      case Load::Kind::upload:
      case Load::Kind::download:
        add(node.device, node.span.begin, node.span.end, copies);
        break;
      default:
        add(node.device, node.span.begin, node.span.end, computes);
    }
  }
  for (const Meeting& meeting : meetings_)
    for (const std::size_t member : meeting.members)
      add(nodes_[member].device, meeting.begin, meeting.end, transfers);
  std::vector<DeviceTimes> all;
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    DeviceTimes times;
    times.process = static_cast<int>(devices_[d].first);
    times.rank = processes_[devices_[d].first].rank;
    times.device = devices_[d].second;
    std::sort(changes[d].begin(), changes[d].end(),
              [](const Change& a, const Change& b) { return a.time < b.time; });
    std::array<int, kinds> active{};
    double last = 0;
    const auto until = [&](double time) {
      double& sum = active[computes]    ? times.computing
                    : active[transfers] ? times.transferring
                    : active[waits]     ? times.waiting
                    : active[copies]    ? times.copying
                                        : times.host;
      sum += time - last;
      last = time;
    };
    for (const Change& change : changes[d]) {
      until(change.time);
      active[change.doing] += change.by;
    }
    until(seconds);
    all.push_back(times);
  }
  return all;
}

/// A link moves the bytes of one transfer after those of another, whatever their order. What a device sends is looked at.
double Simulation::link_bound() const {
  struct Link {
    double first = 0, seconds = 0;
  };
  std::map<std::pair<std::size_t, bool>, Link> links;  // by device, and whether within its node
  for (const Meeting& m : meetings_) {
    const bool inside = one_node(m);
    const double seconds = link_seconds_of(m);
    for (const std::size_t member : m.members) {
      if (m.message() && rank_in(m, member) != m.transfer.source) continue;
      Link& link = links.try_emplace({nodes_[member].device, inside}, Link{m.begin, 0}).first->second;
      link.first = std::min(link.first, m.begin);
      link.seconds += seconds;
    }
  }
  double bound = 0;
  for (const auto& [where, link] : links) bound = std::max(bound, link.first + link.seconds);
  return bound;
}

}  // namespace

Result simulate(const std::vector<Process>& processes, const Rates& rates, const Options& options) {
  return Simulation(processes, rates, options).run();
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
