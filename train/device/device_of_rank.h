#pragma once
#include <span>
#include <string>

#include "core/device.h"
#include "parallel/comm/world.h"

namespace nemocube {

/// The number of a rank's device among the devices that its process sees. Where ranks see several, each takes
/// the next one; where a scheduler shows each rank one device, the number is 0.
int device_index(int local_rank, int visible);

struct RankDevice {
  int node = 0;
  std::string uuid;          ///< of a CUDA device, "" for others; equal on one node means the same device
  std::string text;          ///< device, name and UUID, for messages
  std::string place = {};    ///< for the log: where the device lies (placement.h)
  std::string problem = {};  ///< the fault of that place
};

/// Why these devices, by rank, cannot be used: only some are CUDA devices, or two ranks of a node have the
/// same device without `shared`. Empty when they can.
std::string device_conflict(std::span<const RankDevice> devices, bool shared);

struct RankDeviceOptions {
  bool shared = false;    ///< several ranks of a node may have one device
  bool over_mpi = false;  ///< tensors of CUDA devices travel over MPI, by way of host memory, and not by NCCL
};

/// The device of this rank for one of choose_device(): a CUDA device gets its index and is the process's own
/// from then on; another device stays as it is. Several ranks on CUDA devices of their own use NCCL from then
/// on (World::use_nccl). Ranks that share a device send tensors by MPI, unless NCCL_MULTI_RANK_GPU_ENABLE=1
/// says that they may use NCCL (source: NCCL user guide, "Environment Variables"; NCCL 2.30 or later). All
/// ranks together, before the first tensor on the device and before the first group. Rank 0 logs the devices
/// of its node, their places, badly bound ranks of all nodes, and how tensors travel.
/// errors  Error on every rank where one rank cannot use its device or NCCL, or device_conflict() finds a
///         reason
Device device_of_rank(Device chosen, World& world, const RankDeviceOptions& options);

}  // namespace nemocube
