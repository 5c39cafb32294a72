#pragma once
#include <iosfwd>
#include <string>

#include "train/cost/run_costs.h"

namespace nemocube {

/// Output of `nemocube plan` besides numbers of ranks.
struct PlanWords {
  std::string ranks;         ///< RankSizes::text
  std::string step;          ///< the contents of a step
  std::string assumption;    ///< assumption()
  std::string gpu = "h100";  ///< whose rates the time of a step is estimated from (gpu_rates)
  bool fit = false;          ///< whether ranks fit in that GPU's memory is wanted
  bool nccl = false;         ///< whether a rank's memory includes NCCL's
};

/// Tables: process groups, stages, bytes of the ranks of each pipeline rank (the least and the most of them),
/// traffic of a step by group and operation, bubble, time of a step (step_time.h).
void print_plan(std::ostream& out, const PlanWords& words, RunCosts& costs);

/// The same as one JSON object. Ranks that hold and send the same are one entry of "classes"; "class_of_rank"
/// has the entry of each rank.
void print_plan_json(std::ostream& out, const PlanWords& words, RunCosts& costs);

}  // namespace nemocube
