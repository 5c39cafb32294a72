#include "train/device/device_of_rank.h"

#include <doctest/doctest.h>

#include <vector>

#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("device: ranks of a node take the visible devices in turn") {
  CHECK(device_index(0, 4) == 0);
  CHECK(device_index(3, 4) == 3);
  CHECK(device_index(3, 1) == 0);  // a scheduler shows each rank one
  CHECK(device_index(5, 4) == 1);
}

TEST_CASE("device: two ranks of one node on one device are found by UUID, whatever their indices") {
  const std::vector<RankDevice> apart{
      {0, "GPU-a", "cuda"}, {0, "GPU-b", "cuda"}, {1, "GPU-a", "cuda"}};  // UUIDs count within a node
  CHECK(device_conflict(apart, false).empty());
  const std::vector<RankDevice> together{
      {0, "GPU-a", "cuda"}, {0, "GPU-b", "cuda:1"}, {0, "GPU-a", "cuda, H100, GPU-a"}};
  CHECK(device_conflict(together, false) ==
        "ranks 0 and 2 compute on one device (cuda, H100, GPU-a): want a device for each rank of a node, or "
        "--share-device");
  CHECK(device_conflict(together, true).empty());
}

TEST_CASE("device: ranks that chose different kinds are told so; ranks on the CPU share it") {
  const std::vector<RankDevice> mixed{{0, "", "cpu"}, {1, "GPU-a", "cuda, H100, GPU-a"}};
  CHECK(device_conflict(mixed, true) ==
        "rank 0 computes on cpu, rank 1 on cuda, H100, GPU-a: want one kind of device");
  const std::vector<RankDevice> host{{0, "", "cpu"}, {0, "", "cpu"}};
  CHECK(device_conflict(host, false).empty());
}

TEST_CASE("device: of a single rank") {
  World world(Launch{});
  CHECK(device_of_rank(Device::cpu, world, {}) == Device::cpu);
  CHECK(device_of_rank(Device::guard, world, {}) == Device::guard);
}

TEST_CASE("device: a single rank takes the first CUDA device" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  World world(Launch{});
  CHECK(device_of_rank(Device::cuda, world, {}) == Device::cuda);
}
