#include "parallel/schedule/actions.h"

#include <algorithm>
#include <map>

#include "core/error.h"

namespace nemocube {

char letter_of(Action::Kind kind) { return "FBIW"[static_cast<int>(kind)]; }

std::ostream& operator<<(std::ostream& out, const Action& action) {
  return out << action.stage << letter_of(action.kind) << action.microbatch;
}

std::vector<Action> sequential_actions(std::int64_t microbatches) {
  std::vector<Action> actions;
  for (std::int64_t m = 0; m < microbatches; ++m) {
    actions.push_back({Action::Kind::forward, 0, m});
    actions.push_back({Action::Kind::backward, 0, m});
  }
  return actions;
}

std::vector<std::int64_t> ranks_of_stages(const Schedule& schedule) {
  // A map, since a file may name stages of any number.
  std::map<std::int64_t, std::int64_t> holders;
  for (std::size_t rank = 0; rank < schedule.size(); ++rank) {
    require(!schedule[rank].empty(), "schedule: rank ", rank, " of ", schedule.size(), " has no actions");
    for (const Action& action : schedule[rank]) {
      const auto [holder, first] = holders.emplace(action.stage, rank);
      require(first || holder->second == static_cast<std::int64_t>(rank), "schedule: ", action, " on rank ",
              rank, ", but stage ", action.stage, " is on rank ", holder->second,
              "; want each stage on one rank");
    }
  }
  std::vector<std::int64_t> ranks;
  for (const auto& [stage, rank] : holders) {
    require(stage == static_cast<std::int64_t>(ranks.size()), "schedule: stage ", ranks.size(),
            " is on no rank, but the highest stage is ", holders.rbegin()->first);
    ranks.push_back(rank);
  }
  return ranks;
}

std::int64_t microbatch_count(const Schedule& schedule) {
  std::int64_t count = 0;
  for (const auto& actions : schedule)
    for (const Action& action : actions) count = std::max(count, action.microbatch + 1);
  return count;
}

Schedule first_microbatches(Schedule schedule, std::int64_t count) {
  for (auto& actions : schedule)
    std::erase_if(actions, [count](const Action& action) { return action.microbatch >= count; });
  return schedule;
}

}  // namespace nemocube
