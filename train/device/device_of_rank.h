#pragma once
#include <span>
#include <string>

#include "core/device.h"
#include "parallel/comm/world.h"

namespace nemocube {

/// The number of a rank's device among those that its process sees. Where ranks see several, each takes the next; where
/// a scheduler shows each rank one, that is it.
int device_index(int local_rank, int visible);

struct RankDevice {
  int node = 0;
  std::string uuid;  ///< of a CUDA device, "" for others; equal on one node means the same device
  std::string text;  ///< device, name and UUID, for messages
};

/// Why these devices, by rank, cannot be used: they are not all CUDA devices or all others, or two ranks of a node have
/// the same one and it is not `shared`. Empty when they can.
std::string device_conflict(std::span<const RankDevice> devices, bool shared);

/// The device of this rank for one of choose_device(): a CUDA device gets its index and is the process's own from then
/// on; another device stays as it is. All ranks together, before the first tensor on the device. Rank 0 logs the devices
/// of its node.
/// errors  Error on every rank where one cannot use its device or device_conflict() finds a reason
Device device_of_rank(Device chosen, const World& world, bool shared);

}  // namespace nemocube
