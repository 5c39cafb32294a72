#pragma once
#include <map>

#include "parallel/planner/local_parameters.h"
#include "parallel/planner/rank_traffic.h"
#include "parallel/schedule/transfers.h"

namespace nemocube {

/// How often DataParallel moves a block's tensors in one step of a rank, from the order of passes alone.
struct BlockMoves {
  std::int64_t gathers = 0, expert_gathers = 0;  ///< of dense weights, and of weights of routed experts
  std::int64_t reductions = 0;                   ///< of gradients
};
using UnitMoves = std::map<std::int64_t, BlockMoves>;  ///< by block; the root moves once
/// `program`: of a rank in the step. `parameters`: of the rank's stages.
UnitMoves count_moves(const ModelSetup& setup, const LocalParameters& parameters, const Program& program,
                      const ParallelPlan& plan);

/// Adds the traffic of DataParallel in a step, from begin_step() to finish_update():
///
///     gathers        ZeRO-3: each rank sends its part of the weights to every other one. The root is
///                    gathered once, a block before the passes for which its weights are not there
///     completion     partial gradients are added over the ranks that have parts: one all-reduce of a unit
///                    for each such group
///     reductions     DDP: all-reduce of the gradients; ZeRO: reduce-scatter, then all-reduce of the own part
///                    over the replicas; the root once, a block once, or for every microbatch
///     new values     ZeRO-1 and 2: each rank sends its part of every unit to every other one
void add_data_traffic(RankTraffic& traffic, const LocalParameters& parameters, const UnitMoves& moves,
                      const DataParallelOptions& options);

}  // namespace nemocube
