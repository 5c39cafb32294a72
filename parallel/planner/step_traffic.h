#pragma once
#include <vector>

#include "parallel/planner/data_traffic.h"
#include "parallel/planner/model_traffic.h"

namespace nemocube {

/// The traffic of every rank of a plan in one step, for the passes of the model and for data parallelism.
/// ModelTraffic states the assumptions.
class StepTraffic {
 public:
  StepTraffic(const ModelSetup& setup, const ParallelPlan& plan, const StepLoad& load);

  RankTraffic of(int rank);
  ModelParts& parts() { return parts_; }
  const PlannedGroups& groups() const { return groups_; }

 private:
  ModelSetup setup_;
  ParallelPlan plan_;
  PlannedGroups groups_;
  ModelParts parts_;
  ModelTraffic model_;
  std::vector<Program> programs_;            // of pipeline ranks
  std::map<std::int64_t, UnitMoves> moves_;  // of pipeline ranks
};

}  // namespace nemocube
