#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/comm/process_groups.h"

namespace nemocube {

/// The groups of every rank of a plan, by arithmetic: those that ProcessGroups makes, and "world", all ranks
/// of the grid.
class PlannedGroups {
 public:
  explicit PlannedGroups(const HypercubeGrid& grid)
      : groups_(named_groups(grid)), first_(grid.offset()), ranks_(grid.size()) {}
  PlannedGroups(const HypercubeGrid& grid, const std::set<std::string>& names)
      : groups_(named_groups(grid, names)), first_(grid.offset()), ranks_(grid.size()) {}
  struct Seat {
    std::int64_t size = 1, position = 0;  ///< of the group, and of the rank in it
  };
  Seat seat(std::string_view group, int rank) const;
  const std::vector<NamedGroups>& all() const { return groups_; }

 private:
  std::vector<NamedGroups> groups_;
  std::int64_t first_, ranks_;
};

/// The operations of one rank, added up as Communicator::stats() counts them: calls, and bytes for other
/// ranks. The bytes of each operation are those that docs/parallel.md derives; groups of one rank count
/// nothing. Elements are those of one call, `times` the number of equal calls.
class RankTraffic {
 public:
  struct Sum {
    std::int64_t calls = 0, bytes = 0;
    bool operator==(const Sum&) const = default;
  };
  using Sums = std::map<std::pair<std::string, Operation>, Sum>;  ///< by group and operation

  RankTraffic(const PlannedGroups& groups, int rank) : groups_(&groups), rank_(rank) {}

  void all_reduce(std::string_view group, std::int64_t elements, DType dtype, std::int64_t times = 1);
  /// own: elements of this rank's part
  void all_gather(std::string_view group, std::int64_t own, DType dtype, std::int64_t times = 1);
  /// own: elements of this rank's part of the result, all: of the input
  void reduce_scatter(std::string_view group, std::int64_t own, std::int64_t all, DType dtype,
                      std::int64_t times = 1);
  /// to_others: elements that leave this rank
  void all_to_all(std::string_view group, std::int64_t to_others, DType dtype, std::int64_t times = 1);
  void exchange(std::string_view group, std::int64_t to_others, DType dtype, std::int64_t times = 1);

  const Sums& sums() const { return sums_; }

 private:
  void add(std::string_view group, Operation operation, std::int64_t bytes, std::int64_t times);
  PlannedGroups::Seat seat(std::string_view group) const { return groups_->seat(group, rank_); }

  const PlannedGroups* groups_;
  int rank_;
  Sums sums_;
};

}  // namespace nemocube
