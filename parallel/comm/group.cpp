#include "parallel/comm/group.h"

#include <array>

namespace nemocube {
namespace {

// In the order of Group.
constexpr std::array<std::string_view, 23> group_names{
    "cp",      "dp",      "dp_cp", "dp_replicate", "dp_shard", "dp_shard_cp", "embd", "ep",
    "expt_dp", "expt_tp", "grid",  "kv_replicas",  "mp",       "optimizer",   "pp",   "state_replicas",
    "tp",      "tp_cp",   "tp_dp", "tp_dp_cp",     "tp_ep",    "tp_ep_pp",    "world"};
static_assert(group_names[static_cast<std::size_t>(Group::world)] == "world");

}  // namespace

std::string_view name_of(Group group) { return group_names.at(static_cast<std::size_t>(group)); }

std::optional<Group> find_group(std::string_view name) {
  for (std::size_t i = 0; i < group_names.size(); ++i)
    if (group_names[i] == name) return static_cast<Group>(i);
  return std::nullopt;
}

}  // namespace nemocube
