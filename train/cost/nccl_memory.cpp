#include "train/cost/nccl_memory.h"

#include <algorithm>
#include <string>
#include <vector>

namespace nemocube {
namespace {

constexpr std::int64_t connection_bytes = std::int64_t{12} << 20;
constexpr std::int64_t ring_channels = 24, message_channels = 32, ranks_of_node = 8;

struct MadeGroup {
  const GroupsOfGrid* row;  // null: the world
  std::int64_t ranks;
  NcclMessages messages = {};
};

/// Whether the rank is in a group of this row with other ranks.
bool takes_part(const GroupsOfGrid& row, int rank) {
  if (!row.groups) return false;
  const std::int64_t position = row.groups->position_of(rank);
  return !row.ends_only || position == 0 || position == row.groups->size() - 1;
}

bool same_ranks(const GroupsOfGrid& row, const MadeGroup& made) {
  if (row.ends_only) return false;
  if (!made.row) return row.groups->size() == made.ranks;
  return !made.row->ends_only && made.row->groups == row.groups;
}

void add_messages(Group group, const RankTraffic::Sums& traffic, NcclMessages& messages) {
  messages.to_all |= traffic.contains({group, Operation::all_to_all});
  messages.to_neighbours |= traffic.contains({group, Operation::exchange});
}

}  // namespace

std::int64_t nccl_group_bytes(std::int64_t ranks, const NcclMessages& messages) {
  const std::int64_t others = ranks - 1, neighbours = std::min<std::int64_t>(2, others);
  const std::int64_t partners = messages.to_all          ? std::min(ranks_of_node - 1, others)
                                : messages.to_neighbours ? neighbours
                                                         : 0;
  return connection_bytes * (ring_channels * neighbours + message_channels * partners);
}

std::int64_t nccl_bytes(const PlannedGroups& groups, std::int64_t ranks, int rank,
                        const RankTraffic::Sums& traffic) {
  std::vector<MadeGroup> all{{nullptr, ranks}};
  add_messages(Group::world, traffic, all.front().messages);
  for (const GroupsOfGrid& row : groups.all()) {
    if (!takes_part(row, rank)) continue;
    auto made = std::ranges::find_if(all, [&](const MadeGroup& m) { return same_ranks(row, m); });
    if (made == all.end()) made = all.insert(made, {&row, row.ends_only ? 2 : row.groups->size()});
    add_messages(row.group, traffic, made->messages);
  }
  std::int64_t bytes = 0;
  for (const MadeGroup& made : all) bytes += nccl_group_bytes(made.ranks, made.messages);
  return bytes;
}

}  // namespace nemocube
