#include "train/device/device_of_rank.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/cuda/runtime.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/log.h"
#include "core/profile.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/together.h"
#include "train/device/placement.h"

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

namespace {

/// Makes the CUDA device of this rank the process's own.
RankDevice take_cuda_device(const World& world, Device& device) {
  device = Device::cuda_number(device_index(world.local_rank(), cuda::device_count()));
  cuda::use_device(device.index);
  cuda::time_zones(false);  // ranges for profilers
  const cuda::DeviceDescription described = cuda::describe_device();
  const int numa_node = numa_node_of(described.pci);
  const OwnCpus cpus = own_cpus();
  return {world.node(), described.uuid, cat(device, ", ", described.name, ", ", described.uuid),
          cat(", PCI ", described.pci, numa_node < 0 ? "" : cat(" of NUMA node ", numa_node), "; ",
              to_string(cpus)),
          world.size() > 1 ? placement_problem(numa_node, cpus) : ""};
}

std::vector<RankDevice> of_all_ranks(Communicator* group, const RankDevice& own) {
  const nlohmann::json sent{own.node, own.uuid, own.text, own.place, own.problem};
  std::vector<RankDevice> devices;
  for (const std::string& text : gather_texts(group, sent.dump())) {
    const auto of_rank = nlohmann::json::parse(text);
    devices.push_back({of_rank[0], of_rank[1], of_rank[2], of_rank[3], of_rank[4]});
  }
  return devices;
}

void log_devices(std::span<const RankDevice> devices, int node) {
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const RankDevice& device = devices[rank];
    if (device.node == node) log_info("rank ", rank, " computes on ", device.text, device.place);
    if (!device.problem.empty()) log_warning("rank ", rank, ": ", device.problem);
  }
}

/// Whether NCCL's own variable, of 2.30 and later, allows several ranks on a device.
bool nccl_shares_devices() {
  const char* text = environment_variable("NCCL_MULTI_RANK_GPU_ENABLE");
  return text && std::string_view(text) == "1";
}

}  // namespace

Device device_of_rank(Device chosen, World& world, const RankDeviceOptions& options) {
  static Zone zone("start/devices");
  const ZoneTimer timer(zone);
  Communicator* const group = world.size() > 1 ? &world.communicator() : nullptr;
  Device device = chosen;
  RankDevice own{world.node(), "", cat(chosen)};
  together(group, [&] {
    if (chosen.is_cuda()) own = take_cuda_device(world, device);
  });
  const std::vector<RankDevice> devices = of_all_ranks(group, own);
  const std::string conflict = device_conflict(devices, options.shared);
  require(conflict.empty(), conflict);
  if (!chosen.is_cuda()) return device;
  const bool speaks = world.rank() == 0;
  if (speaks) log_devices(devices, world.node());
  if (!group) return device;
  const bool one_each = device_conflict(devices, false).empty();
  if ((one_each || nccl_shares_devices()) && !options.over_mpi) world.use_nccl();
  if (!speaks) return device;
  log_info("tensors travel by ", world.uses_nccl() ? nccl_version() : "MPI, by way of host memory",
           one_each ? "" : ": ranks share a device");
  if (const std::string network = network_text(); !network.empty())
    log_info("network of rank 0's machine: ", network);
  return device;
}

}  // namespace nemocube
