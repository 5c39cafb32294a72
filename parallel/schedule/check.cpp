#include "parallel/schedule/check.h"

#include <array>
#include <map>
#include <set>
#include <string>

#include "core/error.h"
#include "core/log.h"
#include "parallel/schedule/simulate.h"
#include "parallel/schedule/transfers.h"

namespace nemocube {
namespace {

using Kind = Action::Kind;

/// The actions of a stage so far: the microbatches of each kind.
class StageRecord {
 public:
  /// Why `action` cannot come next; "" when it can.
  std::string fault(const Action& a) const {
    const auto& same = of(a.kind);
    if (same.contains(a.microbatch)) return "occurs twice";
    if (!same.empty() && *same.rbegin() > a.microbatch)
      return cat("comes after ", Action{a.kind, a.stage, *same.rbegin()}, "; want ascending microbatches");
    if (a.kind == Kind::backward_weight)
      return of(Kind::backward_input).contains(a.microbatch) ? "" : before(a, Kind::backward_input);
    if (a.kind == Kind::forward) return "";
    const Kind other = a.kind == Kind::backward ? Kind::backward_input : Kind::backward;
    if (of(other).contains(a.microbatch))
      return cat("comes after ", Action{other, a.stage, a.microbatch},
                 "; want either B, or I and W, for a microbatch of a stage");
    return of(Kind::forward).contains(a.microbatch) ? "" : before(a, Kind::forward);
  }
  void add(const Action& a) { done_[static_cast<std::size_t>(a.kind)].insert(a.microbatch); }
  bool has(Kind kind, std::int64_t microbatch) const { return of(kind).contains(microbatch); }

 private:
  const std::set<std::int64_t>& of(Kind kind) const { return done_[static_cast<std::size_t>(kind)]; }
  static std::string before(const Action& a, Kind needed) {
    return cat("comes before ", Action{needed, a.stage, a.microbatch});
  }
  std::array<std::set<std::int64_t>, 4> done_;
};

void check_complete(const std::vector<StageRecord>& stages, std::int64_t microbatches) {
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (std::int64_t m = 0; m < microbatches; ++m) {
      const auto missing = [&](Kind kind) {
        fail("schedule: no ", Action{kind, static_cast<std::int64_t>(s), m}, ", but ",
             counted(std::ssize(stages), "stage"), " and ",
             counted(microbatches, "microbatch", "microbatches"), " occur");
      };
      if (!stages[s].has(Kind::forward, m)) missing(Kind::forward);
      if (stages[s].has(Kind::backward, m)) continue;
      if (!stages[s].has(Kind::backward_input, m)) missing(Kind::backward);
      if (!stages[s].has(Kind::backward_weight, m)) missing(Kind::backward_weight);
    }
}

}  // namespace

void check_schedule(const Schedule& schedule) {
  require(!schedule.empty(), "schedule: no rank");
  std::vector<StageRecord> stages(ranks_of_stages(schedule).size());
  for (std::size_t rank = 0; rank < schedule.size(); ++rank)
    for (std::size_t i = 0; i < schedule[rank].size(); ++i) {
      const Action& action = schedule[rank][i];
      StageRecord& stage = stages[static_cast<std::size_t>(action.stage)];
      const std::string fault = stage.fault(action);
      require(fault.empty(), "schedule: rank ", rank, ", action ", i, ": ", action, " ", fault);
      stage.add(action);
    }
  check_complete(stages, microbatch_count(schedule));
  check_rendezvous(make_programs(schedule, simulate(schedule)));
}

}  // namespace nemocube
