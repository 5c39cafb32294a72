#include "parallel/schedule/transfers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "core/error.h"

namespace nemocube {
namespace {

using Kind = Action::Kind;
using Payload = Transfer::Payload;

auto order_of(const Transfer& t) { return std::tuple(t.stage, t.microbatch, t.payload); }

/// What other ranks hold of the tensors that actions make and need.
class Transfers {
 public:
  explicit Transfers(const Schedule& schedule) : holders_(ranks_of_stages(schedule)) {}

  /// What the rank of `a` sends after it; empty or one transfer.
  Exchange after(const Action& a) const {
    if (a.kind == Kind::backward_weight) return {};
    const bool forward = a.kind == Kind::forward;
    return between(a.stage, a.stage + (forward ? 1 : -1), a.microbatch, forward);
  }
  /// What the rank of `a` receives before it; empty or one transfer.
  Exchange before(const Action& a) const {
    if (a.kind == Kind::backward_weight) return {};
    const bool forward = a.kind == Kind::forward;
    return between(a.stage + (forward ? -1 : 1), a.stage, a.microbatch, forward);
  }

 private:
  Exchange between(std::int64_t from, std::int64_t to, std::int64_t microbatch, bool forward) const {
    const auto stages = static_cast<std::int64_t>(holders_.size());
    if (std::min(from, to) < 0 || std::max(from, to) >= stages) return {};
    const std::int64_t sender = holders_[static_cast<std::size_t>(from)],
                       receiver = holders_[static_cast<std::size_t>(to)];
    if (sender == receiver) return {};
    return {{from, microbatch, forward ? Payload::activation : Payload::gradient, sender, receiver}};
  }

  std::vector<std::int64_t> holders_;
};

Schedule actions_of(const std::vector<Program>& programs) {
  Schedule schedule;
  for (const Program& program : programs) {
    schedule.emplace_back();
    for (const ProgramItem& item : program)
      if (const auto* action = std::get_if<Action>(&item)) schedule.back().push_back(*action);
  }
  return schedule;
}

class Rendezvous {
 public:
  explicit Rendezvous(const std::vector<Program>& programs)
      : programs_(programs), transfers_(actions_of(programs)), ranks_(programs.size()) {}

  void run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      while (pass_item(rank)) {
      }
    }
    std::string waiting;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (const ProgramItem* item = item_of(rank)) {
        waiting +=
            cat(waiting.empty() ? "" : "; ", "rank ", rank, " waits at item ", ranks_[rank].item, " for");
        for (const Transfer& t : std::get<Exchange>(*item))
          if (arrived_[order_of(t)].size() < 2) waiting += cat(" the ", t);
      }
    require(waiting.empty(), "schedule: exchanges deadlock: ", waiting);
  }

 private:
  using Key = decltype(order_of(Transfer{}));
  struct Rank {
    std::size_t item = 0;
    std::set<Key> has;  ///< tensors computed or received here
  };

  const ProgramItem* item_of(std::size_t rank) const {
    return ranks_[rank].item < programs_[rank].size() ? &programs_[rank][ranks_[rank].item] : nullptr;
  }

  /// Whether the rank has gone past its next item.
  bool pass_item(std::size_t rank) {
    const ProgramItem* item = item_of(rank);
    if (!item) return false;
    if (const auto* action = std::get_if<Action>(item))
      perform(rank, *action);
    else if (!exchange(rank, std::get<Exchange>(*item)))
      return false;
    ++ranks_[rank].item;
    return true;
  }

  void perform(std::size_t rank, const Action& action) {
    for (const Transfer& t : transfers_.before(action))
      require(ranks_[rank].has.contains(order_of(t)), "schedule: rank ", rank, ", item ", ranks_[rank].item,
              ": ", action, " comes before the ", t);
    for (const Transfer& t : transfers_.after(action)) ranks_[rank].has.insert(order_of(t));
  }

  bool exchange(std::size_t rank, const Exchange& transfers) {
    bool done = true;
    for (const Transfer& t : transfers) {
      const auto here = static_cast<std::int64_t>(rank);
      require(t.to == here || (t.from == here && ranks_[rank].has.contains(order_of(t))), "schedule: rank ",
              rank, ", item ", ranks_[rank].item, ": the ", t, " cannot be sent from here yet");
      auto& arrived = arrived_[order_of(t)];
      const bool first_time = arrived.insert(here).second;
      if (arrived.size() == 2 && first_time)
        ready_.push_back(static_cast<std::size_t>(t.from == here ? t.to : t.from));
      done = done && arrived.size() == 2;
    }
    if (done)
      for (const Transfer& t : transfers) ranks_[rank].has.insert(order_of(t));
    return done;
  }

  const std::vector<Program>& programs_;
  const Transfers transfers_;
  std::vector<Rank> ranks_;
  std::vector<std::size_t> ready_;
  std::map<Key, std::set<std::int64_t>> arrived_;  // the ranks that have come to the exchange of a transfer
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const Transfer& t) {
  return out << (t.payload == Payload::activation ? "output" : "input gradient") << " of stage " << t.stage
             << " for microbatch " << t.microbatch << " (rank " << t.from << " to " << t.to << ')';
}

std::vector<Program> make_programs(const Schedule& schedule, const Simulation& simulation) {
  using Clock = std::map<double, Exchange>;  // the exchanges of a rank by time
  const Transfers transfers(schedule);
  std::vector<Clock> clocks(schedule.size());
  for (std::size_t rank = 0; rank < schedule.size(); ++rank)
    for (std::size_t i = 0; i < schedule[rank].size(); ++i)
      for (const Transfer& t : transfers.after(schedule[rank][i]))
        for (const std::int64_t end : {t.from, t.to})
          clocks[static_cast<std::size_t>(end)][simulation.times[rank][i].end].push_back(t);

  std::vector<Program> programs(schedule.size());
  for (std::size_t rank = 0; rank < schedule.size(); ++rank) {
    auto next = clocks[rank].begin();
    const auto add_exchanges_until = [&](double time) {
      for (; next != clocks[rank].end() && next->first <= time; ++next) {
        std::ranges::sort(next->second, {}, order_of);
        programs[rank].emplace_back(std::move(next->second));
      }
    };
    for (std::size_t i = 0; i < schedule[rank].size(); ++i) {
      add_exchanges_until(simulation.times[rank][i].start);
      programs[rank].emplace_back(schedule[rank][i]);
    }
    add_exchanges_until(simulation.makespan);
  }
  return programs;
}

std::vector<bool> last_backward_passes(const Program& program) {
  std::set<std::int64_t> uses, writings;  // stages of later items that end them
  std::vector<bool> last(program.size());
  for (std::size_t i = program.size(); i-- > 0;) {
    const auto* action = std::get_if<Action>(&program[i]);
    if (!action || action->kind == Kind::forward) continue;
    const bool uses_weights = action->kind != Kind::backward_weight,
               writes_gradients = action->kind != Kind::backward_input;
    last[i] = !(uses_weights && uses.contains(action->stage)) &&
              !(writes_gradients && writings.contains(action->stage));
    if (uses_weights) uses.insert(action->stage);
    if (writes_gradients) writings.insert(action->stage);
  }
  return last;
}

void check_rendezvous(const std::vector<Program>& programs) { Rendezvous(programs).run(); }

}  // namespace nemocube
