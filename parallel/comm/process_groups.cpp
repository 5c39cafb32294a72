#include "parallel/comm/process_groups.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/profile.h"
#include "parallel/grid/grid_sizes.h"

namespace nemocube {
namespace {

struct Row {
  const char* name;
  std::vector<std::string> dimensions;
  std::string view = HypercubeGrid::base;
  bool ends_only = false;  // the first and the last rank of the group
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table{
      {"dp", {"dp", "dp_shard", "dp_replicate"}},
      {"dp_cp", {"dp", "dp_shard", "dp_replicate", "cp"}},
      {"tp", {"tp"}},
      {"cp", {"cp"}},
      {"pp", {"pp"}},
      {"dp_shard", {"dp", "dp_shard"}},
      {"dp_replicate", {"dp_replicate"}},
      {"dp_shard_cp", {"dp", "dp_shard", "cp"}},
      {"tp_cp", {"tp", "cp"}},
      {"tp_dp", {"tp", "dp", "dp_shard", "dp_replicate"}},
      {"tp_dp_cp", {"tp", "dp", "dp_shard", "dp_replicate", "cp"}},
      {"mp", {"tp", "pp"}},
      {"optimizer", {"tp", "cp", "dp", "dp_shard", "pp"}},
      {"embd", {"pp"}, HypercubeGrid::base, true},
      {"ep", {"ep"}, "expert"},
      {"expt_tp", {"expt_tp"}, "expert"},
      {"tp_ep", {"expt_tp", "ep"}, "expert"},
      {"tp_ep_pp", {"expt_tp", "ep", "pp"}, "expert"},
      {"expt_dp", {"expt_dp"}, "expert"},
      {"kv_replicas", {"kv_replica"}, "kv"},
      {"state_replicas", {"state_replica"}, "state"},
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

std::vector<NamedGroups> named_groups(const HypercubeGrid& grid) {
  std::vector<NamedGroups> all;
  for (const Row& row : rows()) {
    if (!grid.has_view(row.view)) continue;
    const auto dimensions = those_of(grid, row);
    NamedGroups named{row.name, {}, row.ends_only};
    if (!dimensions.empty()) named.groups = grid.groups(dimensions, row.view);
    if (named.groups && named.groups->size() == 1) named.groups.reset();
    all.push_back(std::move(named));
  }
  return all;
}

std::vector<NamedGroups> named_groups(const HypercubeGrid& grid, const std::set<std::string>& names) {
  std::vector<NamedGroups> chosen = named_groups(grid);
  std::erase_if(chosen, [&](const NamedGroups& row) { return !names.contains(row.name); });
  return chosen;
}

ProcessGroups::ProcessGroups() : alone_(self_communicator("world", 0)), all_(alone_.get()) {
  for (const NamedGroups& row : named_groups(make_grid({}))) add(row.name, self_communicator(row.name, 0));
}

ProcessGroups::ProcessGroups(World& world, const std::vector<NamedGroups>& rows, const HypercubeGrid& grid) {
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
    add("grid", std::move(group));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [name, ranks, ends_only] = rows[i];
    const auto same = std::find_if(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&, &groups = ranks](const NamedGroups& earlier) {
                                     return !earlier.ends_only && earlier.groups == groups;
                                   });
    std::unique_ptr<Communicator> group;
    if (!ranks) {
      if (inside) group = self_communicator(name, world.rank());
    } else if (!ends_only && ranks->size() == grid.size()) {
      if (inside) group = all().of_same_ranks(name);
    } else if (!ends_only && same->name != name) {
      if (inside) group = groups_.at(same->name)->of_same_ranks(name);
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
    add(name, std::move(group));
  }
}

void ProcessGroups::add(const std::string& name, std::unique_ptr<Communicator> group) {
  if (!group) return;  // this rank is in none
  names_.push_back(name);
  groups_.emplace(name, std::move(group));
}

Communicator& ProcessGroups::all() const {
  require(all_, "this rank is outside of the grid of these process groups");
  return *all_;
}

Communicator& ProcessGroups::operator[](const std::string& name) const {
  const auto found = groups_.find(name);
  if (found != groups_.end()) return *found->second;
  std::string known;
  for (const std::string& n : names_) known += (known.empty() ? "" : ", ") + n;
  fail("this rank is in no process group '", name, "' (its groups: ", known.empty() ? "none" : known, ")");
}

}  // namespace nemocube
