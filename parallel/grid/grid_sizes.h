#pragma once
#include <cstdint>
#include <string>

#include "parallel/grid/hypercube_grid.h"

namespace nemocube {

/// The sizes of the process grid of one model, and the rank of the world at which it begins.
///
/// The dimensions, fastest first, are tp, cp, dp_shard, dp_replicate, pp. The view "expert" has the same
/// ranks as expt_tp, ep, expt_dp, pp. Where attention has fewer key and value heads than tp ranks, or Mamba
/// fewer groups of B and C, several neighbouring tp ranks hold the same heads or groups: views "kv" and
/// "state" have dimensions kv_replica and state_replica for these ranks.
struct GridSizes {
  std::int64_t tp = 1, cp = 1, dp_shard = 1, dp_replicate = 1, pp = 1;
  std::int64_t expt_tp = 1, ep = 1;
  std::int64_t kv_replicas = 1, state_replicas = 1;
  std::int64_t first_rank = 0;  ///< the grid has the world's ranks first_rank to first_rank + ranks() - 1

  std::int64_t dp() const { return dp_shard * dp_replicate; }
  std::int64_t ranks_of_stage() const { return tp * cp * dp(); }
  std::int64_t ranks() const { return ranks_of_stage() * pp; }
  std::int64_t end_rank() const { return first_rank + ranks(); }
  /// The first world rank of the ranks with this pipeline coordinate.
  std::int64_t first_rank_of_stage(std::int64_t pipeline_rank) const {
    return first_rank + pipeline_rank * ranks_of_stage();
  }
  std::int64_t expt_dp() const { return ranks_of_stage() / (expt_tp * ep); }
  bool operator==(const GridSizes&) const = default;
};

/// The place of one rank: its coordinate in each dimension.
struct GridPlace {
  std::int64_t tp = 0, cp = 0, dp_shard = 0, dp_replicate = 0, pp = 0;
  std::int64_t expt_tp = 0, ep = 0, expt_dp = 0;
  std::int64_t kv_replica = 0, state_replica = 0;

  /// The number among the data-parallel ranks, as the group "dp" counts.
  std::int64_t dp(const GridSizes& sizes) const { return dp_shard + dp_replicate * sizes.dp_shard; }
};

/// The grid of these sizes. Throws Error for a size below 1, a negative first_rank, and unless expt_tp ep
/// divides tp cp dp, and kv_replicas and state_replicas divide tp.
HypercubeGrid make_grid(const GridSizes& sizes);
/// The place of a world rank in the grid of these sizes; std::logic_error for a rank outside.
GridPlace place_of(const GridSizes& sizes, std::int64_t rank);
/// Sizes other than 1: "tp 2 x cp 1 x dp 4 x pp 2, experts: expt_tp 1 x ep 4 x expt_dp 2"
std::string to_string(const GridSizes& sizes);

}  // namespace nemocube
