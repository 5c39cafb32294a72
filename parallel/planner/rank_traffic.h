#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "parallel/comm/process_groups.h"

namespace nemocube {

/// The groups of every rank of a plan, by arithmetic: the groups that ProcessGroups makes,
/// and Group::world, all ranks of the grid.
class PlannedGroups {
 public:
  explicit PlannedGroups(const HypercubeGrid& grid)
      : groups_(groups_of_grid(grid)), first_(grid.offset()), ranks_(grid.size()) {}
  PlannedGroups(const HypercubeGrid& grid, const std::set<Group>& groups)
      : groups_(groups_of_grid(grid, groups)), first_(grid.offset()), ranks_(grid.size()) {}
  struct Seat {
    std::int64_t size = 1, position = 0;  ///< of the group, and of the rank in it
  };
  Seat seat(Group group, int rank) const;
  const std::vector<GroupsOfGrid>& all() const { return groups_; }

 private:
  std::vector<GroupsOfGrid> groups_;
  std::int64_t first_, ranks_;
};

/// The operations of one rank, added up as Communicator::stats() counts them: calls, and bytes for other
/// ranks. docs/parallel.md derives the bytes of each operation; groups of one rank count nothing. `elements`
/// are of one call, `times` is the number of equal calls.
class RankTraffic {
 public:
  struct Sum {
    std::int64_t calls = 0, bytes = 0;
    bool operator==(const Sum&) const = default;
  };
  using Sums = std::map<std::pair<Group, Operation>, Sum>;  ///< by group and operation

  RankTraffic(const PlannedGroups& groups, int rank) : groups_(&groups), rank_(rank) {}

  void all_reduce(Group group, std::int64_t elements, DType dtype, std::int64_t times = 1);
  /// own: elements of this rank's part
  void all_gather(Group group, std::int64_t own, DType dtype, std::int64_t times = 1);
  /// own: elements of this rank's part of the result, all: of the input
  void reduce_scatter(Group group, std::int64_t own, std::int64_t all, DType dtype, std::int64_t times = 1);
  /// to_others: elements that leave this rank
  void all_to_all(Group group, std::int64_t to_others, DType dtype, std::int64_t times = 1);
  void exchange(Group group, std::int64_t to_others, DType dtype, std::int64_t times = 1);

  const Sums& sums() const { return sums_; }

 private:
  void add(Group group, Operation operation, std::int64_t bytes, std::int64_t times);
  PlannedGroups::Seat seat(Group group) const { return groups_->seat(group, rank_); }

  const PlannedGroups* groups_;
  int rank_;
  Sums sums_;
};

}  // namespace nemocube
