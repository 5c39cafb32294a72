#pragma once
#include <filesystem>
#include <string>
#include <vector>

/// Where a rank's CUDA device, its CPUs and the machine's network interfaces lie, as Linux describes it, for
/// the log: ranks whose CPUs are of another NUMA node than their device copy and launch more slowly.
namespace nemocube {

/// The NUMA node of a PCI device ("0000:1b:00.0"); -1 where the machine does not say. `sys`: where /sys is,
/// for tests.
int numa_node_of(const std::string& pci, const std::filesystem::path& sys = "/sys");

/// The CPUs that this process may use, as in "0-15,32-47", and their NUMA nodes.
struct OwnCpus {
  std::string list;
  std::vector<int> numa_nodes;
};
OwnCpus own_cpus(const std::filesystem::path& sys = "/sys");

/// "CPUs 0-15 of NUMA node 0", or "of NUMA nodes 0, 1", or without nodes where the machine does not say.
std::string to_string(const OwnCpus& cpus);

/// Why a rank is bound badly: all its CPUs are of other NUMA nodes than its device. Empty if bound well.
std::string placement_problem(int device_node, const OwnCpus& cpus);

/// The interfaces between machines: interfaces of InfiniBand and RoCE with their NUMA nodes,
/// or without any the network interfaces that are up, and the variables that choose among
/// them for NCCL. Empty when nothing is found.
std::string network_text(const std::filesystem::path& sys = "/sys");

}  // namespace nemocube
