#include "parallel/schedule/simulate.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "core/error.h"

namespace nemocube {
namespace {

using Kind = Action::Kind;

/// What actions wait for: the output of F, or the input gradient of B or I.
struct Result {
  bool gradient;
  std::int64_t stage, microbatch;
};

std::ostream& operator<<(std::ostream& out, const Result& r) {
  out << r.stage << (r.gradient ? "B" : "F") << r.microbatch;
  return r.gradient ? out << " or " << r.stage << 'I' << r.microbatch : out;
}

std::vector<Result> inputs_of(const Action& a, std::int64_t stages) {
  if (a.kind == Kind::backward_weight) return {{true, a.stage, a.microbatch}};
  if (a.kind == Kind::forward) {
    if (a.stage == 0) return {};
    return {{false, a.stage - 1, a.microbatch}};
  }
  if (a.stage + 1 == stages) return {{false, a.stage, a.microbatch}};
  return {{false, a.stage, a.microbatch}, {true, a.stage + 1, a.microbatch}};
}

class Simulator {
 public:
  Simulator(const Schedule& schedule, const ActionCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        holders_(ranks_of_stages(schedule)),
        microbatches_(microbatch_count(schedule)),
        ranks_(schedule.size()) {
    expect(costs.stages.empty() || costs.stages.size() == holders_.size(), "simulate: ", costs.stages.size(),
           " stage factors for ", holders_.size(), " stages");
    for (auto& ends : ends_) ends.assign(holders_.size() * static_cast<std::size_t>(microbatches_), not_done);
  }

  Simulation run() {
    std::vector<std::size_t> ready;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ready.push_back(rank);
    while (!ready.empty()) {
      const std::size_t rank = ready.back();
      ready.pop_back();
      while (const Action* action = next_of(rank)) {
        if (first_missing(*action)) break;
        perform(ranks_[rank], *action);
        // Only the ranks of the neighbouring stages can have waited for this action.
        if (action->kind == Kind::backward_weight) continue;
        const std::int64_t waiting = action->stage + (action->kind == Kind::forward ? 1 : -1);
        if (waiting >= 0 && waiting < stages()) ready.push_back(holder(waiting));
      }
    }
    check_all_done();
    return result();
  }

 private:
  static constexpr double not_done = -1;
  struct Rank {
    std::vector<TimeSpan> times;
    double free = 0, busy = 0;
    std::int64_t live = 0, most_live = 0;
  };

  std::int64_t stages() const { return static_cast<std::int64_t>(holders_.size()); }
  std::size_t holder(std::int64_t stage) const {
    return static_cast<std::size_t>(holders_[static_cast<std::size_t>(stage)]);
  }
  const Action* next_of(std::size_t rank) const {
    const std::size_t next = ranks_[rank].times.size();
    return next < schedule_[rank].size() ? &schedule_[rank][next] : nullptr;
  }
  double& end_of(const Result& r) {
    return ends_[r.gradient][static_cast<std::size_t>(r.stage * microbatches_ + r.microbatch)];
  }
  std::optional<Result> first_missing(const Action& action) {
    for (const Result& input : inputs_of(action, stages()))
      if (end_of(input) == not_done) return input;
    return {};
  }

  double cost_of(const Action& a) const {
    const double costs[] = {costs_.forward, costs_.backward, costs_.backward_input, costs_.backward_weight};
    return costs[static_cast<std::size_t>(a.kind)] *
           (costs_.stages.empty() ? 1 : costs_.stages[static_cast<std::size_t>(a.stage)]);
  }

  void perform(Rank& rank, const Action& action) {
    const double cost = cost_of(action);
    double start = rank.free;
    for (const Result& input : inputs_of(action, stages())) start = std::max(start, end_of(input));
    expect(start + cost > start, "simulate: the cost of ", action, " is ", cost, " at time ", start,
           "; want more than 0");
    rank.times.push_back({start, start + cost});
    rank.free = start + cost;
    rank.busy += cost;
    if (action.kind == Kind::backward_weight) return;
    const bool forward = action.kind == Kind::forward;
    end_of({!forward, action.stage, action.microbatch}) = rank.free;
    rank.live += forward ? 1 : -1;
    rank.most_live = std::max(rank.most_live, rank.live);
  }

  void check_all_done() {
    std::string waiting;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (const Action* action = next_of(rank))
        waiting += cat(waiting.empty() ? "" : "; ", "rank ", rank, " waits at ", *action, " (action ",
                       ranks_[rank].times.size(), ") for ", *first_missing(*action));
    require(waiting.empty(), "schedule: deadlock: ", waiting);
  }

  Simulation result() {
    Simulation simulation;
    for (const Rank& rank : ranks_) simulation.makespan = std::max(simulation.makespan, rank.free);
    for (Rank& rank : ranks_) {
      simulation.times.push_back(std::move(rank.times));
      simulation.idle.push_back(1 - rank.busy / simulation.makespan);
      simulation.live.push_back(rank.most_live);
    }
    return simulation;
  }

  const Schedule& schedule_;
  const ActionCosts& costs_;
  const std::vector<std::int64_t> holders_;
  const std::int64_t microbatches_;
  std::array<std::vector<double>, 2> ends_;  // of outputs, of input gradients
  std::vector<Rank> ranks_;
};

}  // namespace

Simulation simulate(const Schedule& schedule, const ActionCosts& costs) {
  return Simulator(schedule, costs).run();
}

}  // namespace nemocube
