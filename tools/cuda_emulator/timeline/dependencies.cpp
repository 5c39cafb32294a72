#include <algorithm>
#include <tuple>

#include "timeline/simulation.h"

namespace emulator::timeline {
namespace {

/// What the next transfer of a stream waits for with Options::transfers_apart: the last operation there that is neither a transfer
/// nor a point, and what transfers and points after it were made to wait for.
using Gate = std::vector<std::size_t>;

void pass(Gate& gate, const std::vector<std::size_t>& before) {
  gate.insert(gate.end(), before.begin(), before.end());
  std::sort(gate.begin(), gate.end());
  gate.erase(std::unique(gate.begin(), gate.end()), gate.end());
}

class Connection {
 public:
  Connection(const std::vector<Process>& processes, const Rates& rates, const Options& options)
      : rates_(rates), options_(options), made_{processes} {}
  Simulation make() {
    for (std::size_t p = 0; p < made_.processes.size(); ++p) place(p);
    for (std::size_t p = 0; p < made_.processes.size(); ++p)
      options_.transfers_apart ? connect_apart(p) : connect_in_order(p);
    gather_transfers();
    for (Meeting& meeting : made_.meetings) measure(meeting);
    if (!options_.transfers_free)
      for (Meeting& meeting : made_.meetings) give_time(meeting);
    return std::move(made_);
  }

 private:
  void place(std::size_t process);
  void connect_in_order(std::size_t process);
  void connect_apart(std::size_t process);
  std::vector<std::size_t> waits_of(std::size_t node) const;
  void follow(const std::vector<std::size_t>& before, std::size_t after);

  void gather_transfers();
  int most_ranks_of_node(const Meeting& meeting) const;
  void measure(Meeting& meeting) const;
  void give_time(Meeting& meeting) const;
  std::vector<Use> links(const Meeting& meeting) const;
  double weight(const Meeting& meeting, std::size_t member, bool sends) const;
  double seconds_apart(const Meeting& meeting) const;

  const Rates& rates_;
  const Options options_;
  Simulation made_;
};

/// Nodes, threads and devices of a process.
void Connection::place(std::size_t p) {
  made_.first.push_back(made_.nodes.size());
  made_.by_id.emplace_back();
  std::map<int, std::size_t> device_of;
  for (const Operation& operation : made_.processes[p].operations) {
    const auto [found, fresh] = device_of.try_emplace(operation.device, made_.devices.size());
    if (fresh) made_.devices.emplace_back(p, operation.device);
    made_.by_id[p][operation.id] = made_.nodes.size();
    Node node;
    node.operation = &operation;
    node.process = p;
    node.device = found->second;
    made_.nodes.push_back(std::move(node));
  }
  for (const auto& [id, steps] : made_.processes[p].threads) {
    Thread thread;
    thread.process = p;
    thread.steps = &steps;
    made_.threads.push_back(std::move(thread));
  }
}

void Connection::follow(const std::vector<std::size_t>& before, std::size_t after) {
  for (const std::size_t b : before) {
    made_.nodes[b].successors.push_back(after);
    ++made_.nodes[after].missing;
  }
}

/// Adds a node that is not there yet and is not `own`.
void add_once(std::vector<std::size_t>& nodes, std::size_t node, std::size_t own) {
  if (node == none || node == own || std::find(nodes.begin(), nodes.end(), node) != nodes.end()) return;
  nodes.push_back(node);
}

/// What the program made an operation wait for, besides the one before it in its stream.
std::vector<std::size_t> Connection::waits_of(std::size_t n) const {
  const Node& node = made_.nodes[n];
  std::vector<std::size_t> waits;
  for (const std::uint64_t id : node.operation->after) add_once(waits, made_.node_of(node.process, id), n);
  return waits;
}

/// NCCL does the operations of a communicator one after the other, on whatever streams.
void Connection::connect_in_order(std::size_t p) {
  std::map<std::uint64_t, std::size_t> last_of_communicator;
  std::size_t node = made_.first[p];
  for (const Operation& operation : made_.processes[p].operations) {
    std::vector<std::size_t> before = waits_of(node);
    add_once(before, made_.node_of(p, operation.before), node);
    if (!operation.transfers.empty()) {
      const auto [last, first] =
          last_of_communicator.try_emplace(operation.transfers.front().communicator, none);
      add_once(before, last->second, node);
      last->second = node;
    }
    follow(before, node++);
  }
}

/// A transfer waits for what was before it in its stream but not for earlier transfers there.
void Connection::connect_apart(std::size_t p) {
  std::map<std::uint64_t, Gate> gates;  // by the stream
  std::size_t node = made_.first[p];
  for (const Operation& operation : made_.processes[p].operations) {
    std::vector<std::size_t> before = waits_of(node);
    Gate& gate = gates[operation.stream];
    const bool transfers = operation.load.kind == Load::Kind::exchange;
    if (transfers || operation.load.kind == Load::Kind::point)
      pass(gate, before);
    else
      gate = {node};
    add_once(before, made_.node_of(p, operation.before), node);
    follow(transfers ? gate : before, node++);
  }
}

void Connection::gather_transfers() {
  using Key = std::tuple<std::uint64_t, bool, int, int, std::uint64_t>;
  std::map<Key, std::size_t> known;
  for (std::size_t n = 0; n < made_.nodes.size(); ++n) {
    Node& node = made_.nodes[n];
    for (const Transfer& t : node.operation->transfers) {
      const bool message = t.kind == Transfer::Kind::message;
      const Key key{t.communicator, message, message ? t.source : 0, message ? t.target : 0, t.number};
      const auto [found, fresh] = known.try_emplace(key, made_.meetings.size());
      if (fresh) made_.meetings.emplace_back().transfer = t;
      made_.meetings[found->second].members.push_back(n);
      node.meetings.push_back(found->second);
      ++node.open_meetings;
    }
  }
}

/// Devices are numbered through all processes in the order of their ranks; a node holds as many as rates_ says.
int Connection::most_ranks_of_node(const Meeting& meeting) const {
  std::map<int, int> count;
  const int size = static_cast<int>(rates_.devices_of_node);
  int most = 0;
  for (const std::size_t m : meeting.members)
    most = std::max(most, ++count[static_cast<int>(made_.nodes[m].device) / size]);
  return most;
}

void Connection::measure(Meeting& meeting) const {
  const int ranks = most_ranks_of_node(meeting);
  const Operation& first = *made_.nodes[meeting.members.front()].operation;
  meeting.one_node = ranks == static_cast<int>(meeting.members.size());
  meeting.link_seconds = link_seconds(meeting.transfer, scale_of(first, rates_), ranks, rates_);
}

void Connection::give_time(Meeting& meeting) const {
  meeting.latency = meeting.one_node ? rates_.nvlink_seconds : rates_.network_seconds;
  meeting.work = options_.transfers_apart ? seconds_apart(meeting) : meeting.link_seconds;
  if (!options_.transfers_apart) meeting.uses = links(meeting);
}

/// A call has the weight 1 in each direction, which its messages share.
double Connection::weight(const Meeting& meeting, std::size_t member, bool sends) const {
  if (!meeting.message()) return 1;
  const int rank = made_.rank_in(meeting, member);
  int messages = 0;
  for (const Transfer& t : made_.nodes[member].operation->transfers)
    messages += t.source != t.target && rank == (sends ? t.source : t.target);
  return 1.0 / messages;
}

std::vector<Use> Connection::links(const Meeting& meeting) const {
  std::vector<Use> uses;
  const bool to_itself = meeting.message() && meeting.transfer.source == meeting.transfer.target;
  if (to_itself) return uses;
  const Resource out = meeting.one_node ? Resource::nvlink_out : Resource::network_out;
  const Resource in = meeting.one_node ? Resource::nvlink_in : Resource::network_in;
  for (const std::size_t member : meeting.members) {
    const std::size_t device = made_.nodes[member].device;
    const int rank = made_.rank_in(meeting, member);
    if (!meeting.message() || rank == meeting.transfer.source)
      uses.push_back({device, out, weight(meeting, member, true)});
    if (!meeting.message() || rank == meeting.transfer.target)
      uses.push_back({device, in, weight(meeting, member, false)});
  }
  return uses;
}

/// Messages of one call share the links of its rank in any case: of a message, the longer of what its call sends and what its
/// partner's call receives.
double Connection::seconds_apart(const Meeting& meeting) const {
  if (!meeting.message()) return meeting.link_seconds;
  double longest = 0;
  for (const std::size_t member : meeting.members) {
    const int rank = made_.rank_in(meeting, member);
    const bool sends = rank == meeting.transfer.source;
    double sum = 0;
    for (const std::size_t m : made_.nodes[member].meetings) {
      const Meeting& other = made_.meetings[m];
      if (!other.message() || other.one_node != meeting.one_node) continue;
      if (rank == (sends ? other.transfer.source : other.transfer.target)) sum += other.link_seconds;
    }
    longest = std::max(longest, sum);
  }
  return longest;
}

}  // namespace

int Simulation::rank_in(const Meeting& meeting, std::size_t member) const {
  for (const Transfer& own : nodes[member].operation->transfers)
    if (own.communicator == meeting.transfer.communicator) return own.rank;
  return 0;
}

Simulation connect(const std::vector<Process>& processes, const Rates& rates, const Options& options) {
  return Connection(processes, rates, options).make();
}

}  // namespace emulator::timeline
