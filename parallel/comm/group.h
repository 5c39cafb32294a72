#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace nemocube {

/// The groups that a rank has in the grid of a model. process_groups.h says which ranks a group has and what
/// uses it. Sorted by name.
enum class Group : std::uint8_t {
  cp,
  dp,
  dp_cp,
  dp_replicate,
  dp_shard,
  dp_shard_cp,
  embd,
  ep,
  expt_dp,
  expt_tp,
  grid,
  kv_replicas,
  mp,
  optimizer,
  pp,
  state_replicas,
  tp,
  tp_cp,
  tp_dp,
  tp_dp_cp,
  tp_ep,
  tp_ep_pp,
  world,
};
/// "dp_shard_cp".
std::string_view name_of(Group group);
/// The group of this name; nothing where there is none.
std::optional<Group> find_group(std::string_view name);

}  // namespace nemocube
