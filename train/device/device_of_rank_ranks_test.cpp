#include <doctest/doctest.h>

#include "core/cuda/runtime.h"
#include "tests/support/devices.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"
#include "train/device/device_of_rank.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("device: each rank of a node has a CUDA device of its own, or shares one on request" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  World& world = test_world();
  const int visible = cuda::device_count();
  const Device wanted = Device::cuda_number(world.local_rank() % visible);
  CHECK(device_of_rank(Device::cuda, world, {.shared = true}) == wanted);
  Communicator* const node = world.node_group();
  if (!node || node->size() <= visible) {
    CHECK(device_of_rank(Device::cuda, world, {}) == wanted);
  } else {
    const std::string message = message_of([&] { device_of_rank(Device::cuda, world, {}); });
    CAPTURE(message);
    CHECK(message.find(" compute on one device (cuda, ") != std::string::npos);
  }
}

TEST_CASE("device: ranks on the CPU stay there") {
  World& world = test_world();
  CHECK(device_of_rank(Device::cpu, world, {}) == Device::cpu);
}
