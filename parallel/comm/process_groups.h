#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/group.h"
#include "parallel/comm/world.h"
#include "parallel/grid/hypercube_grid.h"

namespace nemocube {

/// All groups of one kind in a grid.
struct GroupsOfGrid {
  Group group;
  std::optional<RankGroups> groups;  ///< absent: each rank is a group of its own
  bool ends_only = false;            ///< of each group, only the first and the last rank
};
/// The table of ProcessGroups for a grid of any number of ranks, in the order in which the groups are made.
std::vector<GroupsOfGrid> groups_of_grid(const HypercubeGrid& grid);
/// The rows of the table of ProcessGroups for these groups.
std::vector<GroupsOfGrid> groups_of_grid(const HypercubeGrid& grid, const std::set<Group>& groups);

/// The communicators of this rank in the grid of a model, one for each group that a dense or MoE model needs.
/// All ranks of the world, also ranks outside of the grid, make all groups at the start, in the order of this
/// table. Where the groups of two rows are the same ranks, the message library makes them once
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
/// A dimension that the grid lacks has the size 1. Groups of one rank exchange nothing.
/// Source: Megatron-LM, megatron/core/process_groups_config.py; the device mesh of NeMo AutoModel.
class ProcessGroups {
 public:
  ProcessGroups(World& world, const HypercubeGrid& grid) : ProcessGroups(world, groups_of_grid(grid), grid) {}
  /// Only these groups, the same ones on all ranks (used_groups() in parallel/parallel_model).
  ProcessGroups(World& world, const HypercubeGrid& grid, const std::set<Group>& groups)
      : ProcessGroups(world, groups_of_grid(grid, groups), grid) {}
  /// One rank without a World: it is alone in every group.
  ProcessGroups();
  /// This rank's group. Throws Error listing the rank's groups where the rank has no such group.
  Communicator& operator[](Group group) const;
  /// All ranks of the grid, in their order: the world's communicator where the grid is the whole world.
  /// Throws Error on a rank outside of the grid.
  Communicator& all() const;
  const std::vector<Group>& present() const { return present_; }  ///< this rank's groups, as created

  /// How many groups the message library made: groups of the same ranks are made once (of_same_ranks).
  int made() const { return made_; }

 private:
  ProcessGroups(World& world, const std::vector<GroupsOfGrid>& rows, const HypercubeGrid& grid);
  void add(Group group, std::unique_ptr<Communicator> communicator);

  std::unique_ptr<Communicator> alone_;  // null where there is a World
  Communicator* all_ = nullptr;          // null outside of the grid
  int made_ = 0;
  std::vector<Group> present_;
  std::map<Group, std::unique_ptr<Communicator>> groups_;
};

}  // namespace nemocube
