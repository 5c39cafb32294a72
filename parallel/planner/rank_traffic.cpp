#include "parallel/planner/rank_traffic.h"

#include <algorithm>

#include "core/range.h"
#include "parallel/comm/mpi/message_algorithms.h"

namespace nemocube {

PlannedGroups::Seat PlannedGroups::seat(Group group, int rank) const {
  if (group == Group::world) return {ranks_, rank - first_};
  const auto found = std::ranges::find(groups_, group, &GroupsOfGrid::group);
  expect(found != groups_.end(), "a plan has no process group '", name_of(group), "'");
  if (!found->groups) return {};
  if (found->ends_only)
    return {std::min<std::int64_t>(found->groups->size(), 2), found->groups->position_of(rank) > 0 ? 1 : 0};
  return {found->groups->size(), found->groups->position_of(rank)};
}

void RankTraffic::add(Group group, Operation operation, std::int64_t bytes, std::int64_t times) {
  if (times == 0) return;
  Sum& sum = sums_[{group, operation}];
  sum.calls += times;
  sum.bytes += bytes * times;
}

void RankTraffic::all_reduce(Group group, std::int64_t elements, DType dtype, std::int64_t times) {
  const auto [ranks, position] = seat(group);
  if (ranks == 1) return;
  const std::int64_t bytes = elements * size_of(dtype);
  // Short tensors go whole to everyone. Of others each part goes to its rank, and the sum of the own one to
  // everyone.
  const std::int64_t own = even_part({0, elements}, ranks, position).size() * size_of(dtype);
  const bool short_one = bytes <= latency_bound_bytes;
  add(group, Operation::all_reduce, short_one ? (ranks - 1) * bytes : bytes - own + (ranks - 1) * own, times);
}

void RankTraffic::all_gather(Group group, std::int64_t own, DType dtype, std::int64_t times) {
  const std::int64_t others = seat(group).size - 1;
  if (others > 0) add(group, Operation::all_gather, others * own * size_of(dtype), times);
}

void RankTraffic::reduce_scatter(Group group, std::int64_t own, std::int64_t all, DType dtype,
                                 std::int64_t times) {
  if (seat(group).size > 1) add(group, Operation::reduce_scatter, (all - own) * size_of(dtype), times);
}

void RankTraffic::all_to_all(Group group, std::int64_t to_others, DType dtype, std::int64_t times) {
  if (seat(group).size > 1) add(group, Operation::all_to_all, to_others * size_of(dtype), times);
}

void RankTraffic::exchange(Group group, std::int64_t to_others, DType dtype, std::int64_t times) {
  if (seat(group).size > 1) add(group, Operation::exchange, to_others * size_of(dtype), times);
}

}  // namespace nemocube
