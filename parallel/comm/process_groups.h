#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/world.h"
#include "parallel/grid/hypercube_grid.h"

namespace nemocube {

/// All groups of one name in a grid.
struct NamedGroups {
  std::string name;
  std::optional<RankGroups> groups;  ///< absent: each rank is a group of its own
  bool ends_only = false;            ///< of each group, only the first and the last rank
};
/// The table of ProcessGroups for a grid of any number of ranks, in the order in which the groups are made.
std::vector<NamedGroups> named_groups(const HypercubeGrid& grid);
/// Those rows of it that have one of these names.
std::vector<NamedGroups> named_groups(const HypercubeGrid& grid, const std::set<std::string>& names);

/// The communicators of this rank in the grid of a model, one for each group that a dense or MoE model needs.
/// All are made at the start, by all ranks of the world in the order of this table, also by those outside of
/// the grid. Where the groups of two rows are the same ranks, the message library makes them once
/// (Communicator::of_same_ranks). A world of several models has several grids side by side: all ranks then
/// make the groups of each, one grid after another.
///
///   group            dimensions of the grid             used for
///   grid             all; only where the grid is a part of the world
///   tp, cp, pp       tp; cp; pp                         layers, sequence parts, stages
///   dp_shard         dp_shard (dp where there is none)  sharded gradients and parameters
///   dp_replicate     dp_replicate                       gradients of replicas (HSDP)
///   dp               dp_shard, dp_replicate             data order, first weights
///   dp_shard_cp      dp_shard, cp                       sharded dense gradients and parameters
///   dp_cp            dp, cp                             dense gradients, loss and token sums
///   tp_cp, tp_dp, tp_dp_cp                              statistics of routers
///   mp               tp, pp                             gradient norm without ZeRO
///   optimizer        all but dp_replicate               gradient norm under ZeRO
///   embd             first and last of pp               embeddings: tied head, multi-token prediction
/// and for a grid with a view named "expert":
///   ep, expt_tp, expt_dp, tp_ep, tp_ep_pp               experts: dispatch, split, gradients, norm
/// and for a grid with views named "kv" and "state" (parallel/grid/grid_sizes.h):
///   kv_replicas, state_replicas      gradients of heads and groups that several tp ranks hold
/// A dimension that the grid lacks counts as one of size 1. Groups of one rank exchange nothing.
/// Source: Megatron-LM, megatron/core/process_groups_config.py; the device mesh of NeMo AutoModel.
class ProcessGroups {
 public:
  ProcessGroups(World& world, const HypercubeGrid& grid) : ProcessGroups(world, named_groups(grid), grid) {}
  /// Only the groups of these names, the same ones on all ranks (used_groups() in parallel/parallel_model).
  ProcessGroups(World& world, const HypercubeGrid& grid, const std::set<std::string>& names)
      : ProcessGroups(world, named_groups(grid, names), grid) {}
  /// One rank without a World, which is alone in every group.
  ProcessGroups();
  /// This rank's group. Throws Error listing the groups for an unknown name and where this rank is in none.
  Communicator& operator[](const std::string& name) const;
  /// All ranks of the grid, in their order: the world's communicator where the grid is the whole world.
  /// Throws Error on a rank outside of the grid.
  Communicator& all() const;
  const std::vector<std::string>& names() const { return names_; }  ///< those of this rank, as created

  /// How many of the groups are not the same ranks as another one of this grid, or as the world.
  int made() const { return made_; }

 private:
  ProcessGroups(World& world, const std::vector<NamedGroups>& rows, const HypercubeGrid& grid);
  void add(const std::string& name, std::unique_ptr<Communicator> group);

  std::unique_ptr<Communicator> alone_;  // null where there is a World
  Communicator* all_ = nullptr;          // null outside of the grid
  int made_ = 0;
  std::vector<std::string> names_;
  std::map<std::string, std::unique_ptr<Communicator>> groups_;
};

}  // namespace nemocube
