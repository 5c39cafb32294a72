#include "parallel/comm/process_groups.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/profile.h"
#include "parallel/grid/grid_sizes.h"

namespace nemocube {
namespace {

struct Row {
  Group group;
  std::vector<std::string> dimensions;
  std::string view = HypercubeGrid::base;
  bool ends_only = false;  // the first and the last rank of the group
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table{
      {Group::dp, {"dp", "dp_shard", "dp_replicate"}},
      {Group::dp_cp, {"dp", "dp_shard", "dp_replicate", "cp"}},
      {Group::tp, {"tp"}},
      {Group::cp, {"cp"}},
      {Group::pp, {"pp"}},
      {Group::dp_shard, {"dp", "dp_shard"}},
      {Group::dp_replicate, {"dp_replicate"}},
      {Group::dp_shard_cp, {"dp", "dp_shard", "cp"}},
      {Group::tp_cp, {"tp", "cp"}},
      {Group::tp_dp, {"tp", "dp", "dp_shard", "dp_replicate"}},
      {Group::tp_dp_cp, {"tp", "dp", "dp_shard", "dp_replicate", "cp"}},
      {Group::mp, {"tp", "pp"}},
      {Group::optimizer, {"tp", "cp", "dp", "dp_shard", "pp"}},
      {Group::embd, {"pp"}, HypercubeGrid::base, true},
      {Group::ep, {"ep"}, "expert"},
      {Group::expt_tp, {"expt_tp"}, "expert"},
      {Group::tp_ep, {"expt_tp", "ep"}, "expert"},
      {Group::tp_ep_pp, {"expt_tp", "ep", "pp"}, "expert"},
      {Group::expt_dp, {"expt_dp"}, "expert"},
      {Group::kv_replicas, {"kv_replica"}, "kv"},
      {Group::state_replicas, {"state_replica"}, "state"},
  };
  return table;
}

std::vector<std::string> those_of(const HypercubeGrid& grid, const Row& row) {
  std::vector<std::string> present;
  for (const GridDimension& d : grid.dimensions(row.view))
    if (std::ranges::find(row.dimensions, d.name) != row.dimensions.end()) present.push_back(d.name);
  return present;
}

}  // namespace

std::vector<GroupsOfGrid> groups_of_grid(const HypercubeGrid& grid) {
  std::vector<GroupsOfGrid> all;
  for (const Row& row : rows()) {
    if (!grid.has_view(row.view)) continue;
    const auto dimensions = those_of(grid, row);
    GroupsOfGrid made{row.group, {}, row.ends_only};
    if (!dimensions.empty()) made.groups = grid.groups(dimensions, row.view);
    if (made.groups && made.groups->size() == 1) made.groups.reset();
    all.push_back(std::move(made));
  }
  return all;
}

std::vector<GroupsOfGrid> groups_of_grid(const HypercubeGrid& grid, const std::set<Group>& groups) {
  std::vector<GroupsOfGrid> chosen = groups_of_grid(grid);
  std::erase_if(chosen, [&](const GroupsOfGrid& row) { return !groups.contains(row.group); });
  return chosen;
}

ProcessGroups::ProcessGroups() : alone_(self_communicator("world", 0)), all_(alone_.get()) {
  for (const GroupsOfGrid& row : groups_of_grid(make_grid({})))
    add(row.group, self_communicator(std::string(name_of(row.group)), 0));
}

ProcessGroups::ProcessGroups(World& world, const std::vector<GroupsOfGrid>& rows, const HypercubeGrid& grid) {
  static Zone zone("start/groups");
  const ZoneTimer timer(zone);
  expect(grid.offset() + grid.size() <= world.size(), "a grid of ranks ", grid.offset(), " to ",
         grid.offset() + grid.size() - 1, " in a world of ", world.size());
  const bool inside = grid.contains(world.rank());
  if (grid.size() == world.size()) {
    all_ = &world.communicator();
  } else {
    made_ += grid.size() > 1;
    std::unique_ptr<Communicator> group;
    if (grid.size() > 1)
      group = world.split("grid", inside ? 0 : -1, world.rank());
    else if (inside)
      group = self_communicator("grid", world.rank());
    all_ = group.get();
    add(Group::grid, std::move(group));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [kind, ranks, ends_only] = rows[i];
    const std::string name(name_of(kind));
    const auto same = std::find_if(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&, &groups = ranks](const GroupsOfGrid& earlier) {
                                     return !earlier.ends_only && earlier.groups == groups;
                                   });
    std::unique_ptr<Communicator> group;
    if (!ranks) {
      if (inside) group = self_communicator(name, world.rank());
    } else if (!ends_only && ranks->size() == grid.size()) {
      if (inside) group = all().of_same_ranks(name);
    } else if (!ends_only && same->group != kind) {
      if (inside) group = groups_.at(same->group)->of_same_ranks(name);
    } else {
      ++made_;
      int colour = -1, key = 0;
      if (inside) {
        key = static_cast<int>(ranks->position_of(world.rank()));
        const bool end = key == 0 || key == ranks->size() - 1;
        if (end || !ends_only) colour = static_cast<int>(ranks->group_of(world.rank()));
      }
      group = world.split(name, colour, key);
    }
    add(kind, std::move(group));
  }
}

void ProcessGroups::add(Group group, std::unique_ptr<Communicator> communicator) {
  if (!communicator) return;  // this rank is in none
  present_.push_back(group);
  groups_.emplace(group, std::move(communicator));
}

Communicator& ProcessGroups::all() const {
  require(all_, "this rank is outside of the grid of these process groups");
  return *all_;
}

Communicator& ProcessGroups::operator[](Group group) const {
  const auto found = groups_.find(group);
  if (found != groups_.end()) return *found->second;
  std::string known;
  for (const Group g : present_) known += cat(known.empty() ? "" : ", ", name_of(g));
  fail("this rank is in no process group '", name_of(group),
       "' (its groups: ", known.empty() ? "none" : known, ")");
}

}  // namespace nemocube
