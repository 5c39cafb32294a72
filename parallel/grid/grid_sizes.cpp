#include "parallel/grid/grid_sizes.h"

#include <utility>

#include "core/error.h"

namespace nemocube {
namespace {

using Dimensions = std::vector<GridDimension>;

Dimensions base_dimensions(const GridSizes& s) {
  return {
      {"tp", s.tp}, {"cp", s.cp}, {"dp_shard", s.dp_shard}, {"dp_replicate", s.dp_replicate}, {"pp", s.pp}};
}
Dimensions expert_dimensions(const GridSizes& s) {
  return {{"expt_tp", s.expt_tp}, {"ep", s.ep}, {"expt_dp", s.expt_dp()}, {"pp", s.pp}};
}
/// tp as neighbours that hold the same heads, and ranks that hold others.
Dimensions replica_dimensions(const char* name, std::int64_t replicas, const GridSizes& s) {
  return {{name, replicas}, {"cut", s.tp / replicas}, {"cp_dp", s.cp * s.dp()}, {"pp", s.pp}};
}

}  // namespace

HypercubeGrid make_grid(const GridSizes& s) {
  const std::int64_t experts = s.expt_tp * s.ep;
  HypercubeGrid grid(base_dimensions(s), s.first_rank, s.end_rank());
  require(experts >= 1 && s.ranks_of_stage() % experts == 0, "grid: the ranks of a stage, tp * cp * dp (",
          s.tp, " * ", s.cp, " * ", s.dp(), " = ", s.ranks_of_stage(),
          "), must be divisible by expt_tp * ep (", s.expt_tp, " * ", s.ep, " = ", experts, ")");
  grid.add_view("expert", expert_dimensions(s), {"pp"});
  for (const auto& [view, dimension, replicas] :
       {std::tuple{"kv", "kv_replica", s.kv_replicas}, {"state", "state_replica", s.state_replicas}}) {
    require(replicas >= 1 && s.tp % replicas == 0, "grid: ", dimension, "s are ", replicas,
            "; want a divisor of tp, ", s.tp);
    grid.add_view(view, replica_dimensions(dimension, replicas, s), {"pp"});
  }
  return grid;
}

GridPlace place_of(const GridSizes& s, std::int64_t rank) {
  expect(rank >= s.first_rank && rank < s.end_rank(), "rank ", rank, " is outside of the grid of ranks ",
         s.first_rank, " to ", s.end_rank() - 1);
  GridPlace p;
  std::int64_t rest = rank - s.first_rank;
  const auto next = [&rest](std::int64_t size) {
    const std::int64_t coordinate = rest % size;
    rest /= size;
    return coordinate;
  };
  p.tp = next(s.tp);
  p.cp = next(s.cp);
  p.dp_shard = next(s.dp_shard);
  p.dp_replicate = next(s.dp_replicate);
  p.pp = next(s.pp);
  rest = rank - s.first_rank;
  p.expt_tp = next(s.expt_tp);
  p.ep = next(s.ep);
  p.expt_dp = next(s.expt_dp());
  p.kv_replica = p.tp % s.kv_replicas;
  p.state_replica = p.tp % s.state_replicas;
  return p;
}

std::string to_string(const GridSizes& s) {
  std::string text = cat("tp ", s.tp, " x cp ", s.cp, " x dp ", s.dp(), " x pp ", s.pp);
  if (s.expt_tp * s.ep > 1)
    text += cat(", experts: expt_tp ", s.expt_tp, " x ep ", s.ep, " x expt_dp ", s.expt_dp());
  return text;
}

}  // namespace nemocube
