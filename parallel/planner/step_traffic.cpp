#include "parallel/planner/step_traffic.h"

#include "parallel/schedule/simulate.h"

namespace nemocube {
namespace {

std::vector<Program> programs_of(const ParallelPlan& plan, std::int64_t microbatches) {
  const Schedule schedule = plan.pipeline.schedule(plan.grid.pp, microbatches);
  return make_programs(schedule, simulate(schedule));
}

}  // namespace

StepTraffic::StepTraffic(const ModelSetup& setup, const ParallelPlan& plan, const StepLoad& load)
    : setup_(setup),
      plan_(plan),
      groups_(make_grid(plan.grid), used_groups(plan, setup)),
      parts_(setup, plan, load.dtype),
      model_(setup, plan, load),
      programs_(programs_of(plan, load.microbatches)) {}

RankTraffic StepTraffic::of(int rank) {
  const GridPlace place = place_of(plan_.grid, rank);
  const Program& program = programs_[static_cast<std::size_t>(place.pp)];
  const LocalParameters& parameters = parts_.of(place);
  auto moves = moves_.find(place.pp);
  if (moves == moves_.end())
    moves = moves_.emplace(place.pp, count_moves(setup_, parameters, program, plan_)).first;
  RankTraffic traffic(groups_, rank);
  model_.add(traffic, place, program);
  add_data_traffic(traffic, parameters, moves->second, plan_.data);
  return traffic;
}

}  // namespace nemocube
