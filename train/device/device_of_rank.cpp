#include "train/device/device_of_rank.h"

#include <map>
#include <nlohmann/json.hpp>

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/log.h"
#include "parallel/comm/nccl_group.h"
#include "parallel/comm/together.h"

namespace nemocube {

int device_index(int local_rank, int visible) {
  expect(local_rank >= 0 && visible >= 1, "local rank ", local_rank, ", ", visible, " devices");
  return local_rank % visible;
}

std::string device_conflict(std::span<const RankDevice> devices, bool shared) {
  std::map<std::pair<int, std::string>, std::size_t> first_rank;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const RankDevice& device = devices[rank];
    if (device.uuid.empty() != devices[0].uuid.empty())
      return cat("rank 0 computes on ", devices[0].text, ", rank ", rank, " on ", device.text,
                 ": want one kind of device");
    if (shared || device.uuid.empty()) continue;
    const auto [before, own] = first_rank.try_emplace({device.node, device.uuid}, rank);
    if (!own)
      return cat("ranks ", before->second, " and ", rank, " compute on one device (", device.text,
                 "): want a device for each rank of a node, or --share-device");
  }
  return {};
}

Device device_of_rank(Device chosen, World& world, const RankDeviceOptions& options) {
  Communicator* const group = world.size() > 1 ? &world.communicator() : nullptr;
  Device device = chosen;
  nlohmann::json own{world.node(), "", cat(chosen)};
  together(group, [&] {
    if (!chosen.is_cuda()) return;
    device = Device::cuda_number(device_index(world.local_rank(), cuda::device_count()));
    cuda::use_device(device.index);
    cuda::time_zones(false);  // ranges for profilers
    const cuda::DeviceDescription described = cuda::describe_device();
    own = {world.node(), described.uuid, cat(device, ", ", described.name, ", ", described.uuid)};
  });
  std::vector<RankDevice> devices;
  for (const std::string& text : gather_texts(group, own.dump())) {
    const auto of_rank = nlohmann::json::parse(text);
    devices.push_back({of_rank[0], of_rank[1], of_rank[2]});
  }
  const std::string conflict = device_conflict(devices, options.shared);
  require(conflict.empty(), conflict);
  for (std::size_t rank = 0; rank < devices.size(); ++rank)
    if (chosen.is_cuda() && world.rank() == 0 && devices[rank].node == world.node())
      log_info("rank ", rank, " computes on ", devices[rank].text);
  if (!chosen.is_cuda() || !group) return device;
  const bool one_each = device_conflict(devices, false).empty();
  if (one_each && !options.over_mpi) world.use_nccl();
  if (world.rank() == 0)
    log_info("tensors travel by ", world.uses_nccl() ? nccl_version() : "MPI, by way of host memory",
             one_each ? "" : ": ranks share a device");
  return device;
}

}  // namespace nemocube
