#include <algorithm>
#include <array>
#include <map>

#include "timeline/simulation.h"

namespace emulator::timeline {
namespace {

/// Of a thread, from a step back to the operation that the thread waited for last; `none` where it waited for none.
std::size_t mark_steps(Thread& thread, std::size_t step, Critical& critical) {
  for (;; --step) {
    Span& span = thread.spans[step];
    span.critical = true;
    if (thread.causes[step] != none) return thread.causes[step];
    critical.host += span.end - span.begin;
    if (step == 0) return none;
  }
}

/// From the last end back to the beginning.
Critical mark_critical(Simulation& made) {
  Critical critical;
  std::size_t n = none;
  for (std::size_t i = 0; i < made.nodes.size(); ++i)
    if (n == none || made.nodes[i].span.end > made.nodes[n].span.end) n = i;
  while (n != none) {
    Node* node = &made.nodes[n];
    node->span.critical = true;
    const Load::Kind kind = node->operation->load.kind;
    if (kind == Load::Kind::exchange && node->partner != none) {
      critical.transferring += node->span.end - made.nodes[node->partner].span.ready;
      node = &made.nodes[node->partner];
      node->span.critical = true;
    } else {
      const bool copies = kind == Load::Kind::upload || kind == Load::Kind::download;
      (copies ? critical.copying : critical.computing) += node->span.end - node->span.begin;
    }
    n = node->cause;
    if (n == none && node->cause_thread != none)
      n = mark_steps(made.threads[node->cause_thread], node->cause_step, critical);
  }
  return critical;
}

/// A device begins (1) or ends (-1) one thing that it does.
struct Change {
  enum Doing : std::uint8_t { computes, transfers, waits, copies, kinds };
  double time;
  Doing doing;
  int by;
};

/// Begins and ends on each device, in the order of time.
std::vector<std::vector<Change>> changes_of_devices(const Simulation& made) {
  std::vector<std::vector<Change>> changes(made.devices.size());
  const auto add = [&](std::size_t device, double begin, double end, Change::Doing doing) {
    if (end - begin <= 0) return;
    changes[device].push_back({begin, doing, 1});
    changes[device].push_back({end, doing, -1});
  };
  for (const Node& node : made.nodes) {
    switch (node.operation->load.kind) {
      case Load::Kind::point:
      case Load::Kind::host:
        break;
      case Load::Kind::exchange:
        add(node.device, node.span.ready, node.span.end, Change::waits);
        break;
      case Load::Kind::upload:
      case Load::Kind::download:
        add(node.device, node.span.begin, node.span.end, Change::copies);
        break;
      default:
        add(node.device, node.span.begin, node.span.end, Change::computes);
    }
  }
  for (const Meeting& meeting : made.meetings)
    for (const std::size_t member : meeting.members)
      add(made.nodes[member].device, meeting.begin, meeting.end, Change::transfers);
  for (std::vector<Change>& device : changes)
    std::sort(device.begin(), device.end(), [](const Change& a, const Change& b) { return a.time < b.time; });
  return changes;
}

void add_times(const std::vector<Change>& changes, double seconds, DeviceTimes& times) {
  std::array<int, Change::kinds> active{};
  double last = 0;
  const auto until = [&](double time) {
    double& sum = active[Change::computes]    ? times.computing
                  : active[Change::transfers] ? times.transferring
                  : active[Change::waits]     ? times.waiting
                  : active[Change::copies]    ? times.copying
                                              : times.host;
    sum += time - last;
    last = time;
  };
  for (const Change& change : changes) {
    until(change.time);
    active[change.doing] += change.by;
  }
  until(seconds);
}

std::vector<DeviceTimes> device_times(const Simulation& made, double seconds) {
  const std::vector<std::vector<Change>> changes = changes_of_devices(made);
  std::vector<DeviceTimes> all;
  for (std::size_t d = 0; d < made.devices.size(); ++d) {
    const auto [process, device] = made.devices[d];
    DeviceTimes& times = all.emplace_back();
    times.process = static_cast<int>(process);
    times.rank = made.processes[process].rank;
    times.device = device;
    add_times(changes[d], seconds, times);
  }
  return all;
}

/// A link moves the bytes of one transfer after those of another, whatever their order. What a device sends is looked at.
double link_bound(const Simulation& made) {
  struct Link {
    double first = 0, seconds = 0;
  };
  std::map<std::pair<std::size_t, bool>, Link> links;  // by device, and whether within its node
  for (const Meeting& m : made.meetings)
    for (const std::size_t member : m.members) {
      if (m.message() && made.rank_in(m, member) != m.transfer.source) continue;
      Link& link = links.try_emplace({made.nodes[member].device, m.one_node}, Link{m.begin, 0}).first->second;
      link.first = std::min(link.first, m.begin);
      link.seconds += m.link_seconds;
    }
  double bound = 0;
  for (const auto& [where, link] : links) bound = std::max(bound, link.first + link.seconds);
  return bound;
}

std::size_t count_incomplete(const std::vector<Meeting>& meetings) {
  const auto incomplete = [](const Meeting& m) {
    return m.members.size() < (m.message() ? 2u : static_cast<std::size_t>(m.transfer.ranks));
  };
  return static_cast<std::size_t>(std::count_if(meetings.begin(), meetings.end(), incomplete));
}

}  // namespace

Result outcome_of(Simulation made, double seconds) {
  Result result;
  result.seconds = seconds;
  result.critical = mark_critical(made);
  result.operations.resize(made.processes.size());
  for (const Node& node : made.nodes) result.operations[node.process].push_back(node.span);
  result.steps.resize(made.processes.size());
  for (Thread& thread : made.threads) result.steps[thread.process].push_back(std::move(thread.spans));
  result.devices = device_times(made, seconds);
  result.link_bound = link_bound(made);
  result.incomplete_transfers = count_incomplete(made.meetings);
  return result;
}

}  // namespace emulator::timeline
