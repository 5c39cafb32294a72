#include "train/device/placement.h"

#include <doctest/doctest.h>

#include <fstream>

#include "data/json/test_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const char* text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text << '\n';
}

}  // namespace

TEST_CASE("placement: NUMA nodes of devices and CPUs are those that the machine names") {
  const TestDir sys;
  write(sys.path() / "bus/pci/devices/0000:1b:00.0/numa_node", "1");
  CHECK(numa_node_of("0000:1b:00.0", sys.path()) == 1);
  CHECK(numa_node_of("0000:2b:00.0", sys.path()) == -1);
  const OwnCpus unknown = own_cpus(sys.path());
  CHECK_FALSE(unknown.list.empty());
  CHECK(unknown.numa_nodes.empty());
  CHECK(to_string(unknown) == "CPUs " + unknown.list);
  for (int cpu = 0; cpu < 1024; ++cpu)
    fs::create_directories(sys.path() / "devices/system/cpu" / ("cpu" + std::to_string(cpu)) / "node3");
  CHECK(own_cpus(sys.path()).numa_nodes == std::vector<int>{3});
}

TEST_CASE("placement: a rank whose CPUs are all of other NUMA nodes than its device is told so") {
  const OwnCpus both{"0-3", {0, 1}}, far{"0-1,8", {0}};
  CHECK(to_string(both) == "CPUs 0-3 of NUMA nodes 0, 1");
  CHECK(placement_problem(1, both).empty());
  CHECK(placement_problem(-1, far).empty());
  CHECK(placement_problem(1, {"0", {}}).empty());
  CHECK(placement_problem(1, far) ==
        "its device is of NUMA node 1 and none of its CPUs 0-1,8 of NUMA node 0: bind the rank to the CPUs "
        "beside "
        "its device (tools/launch/bind.sh)");
}

TEST_CASE("placement: RDMA interfaces come before others, and those that are down are left out") {
  const TestDir sys;
  CHECK(network_text(sys.path()).empty());
  write(sys.path() / "class/net/lo/operstate", "unknown");
  write(sys.path() / "class/net/eth0/operstate", "up");
  write(sys.path() / "class/net/eth1/operstate", "down");
  CHECK(network_text(sys.path()) == "eth0");
  write(sys.path() / "class/infiniband/mlx5_1/device/numa_node", "1");
  write(sys.path() / "class/infiniband/mlx5_0/device/numa_node", "-1");
  CHECK(network_text(sys.path()) == "mlx5_0, mlx5_1 of NUMA node 1");
}
