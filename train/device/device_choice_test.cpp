#include "train/device/device_choice.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/cuda/module.h"
#include "core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("device: the choices by name") {
  CHECK(parse_device("cpu") == DeviceChoice::cpu);
  CHECK(parse_device("cuda") == DeviceChoice::cuda);
  CHECK(parse_device("auto") == DeviceChoice::automatic);
  CHECK(message_of([] { parse_device("gpu"); }) == "--device: want cpu, cuda or auto, got 'gpu'");
}

TEST_CASE("device: cuda is refused with the reason, auto turns to the cpu") {
  const std::vector<std::string_view> unheard{"rmsnorm", "unheard_of", "also_unheard_of"};
  CHECK(choose_device(DeviceChoice::cpu, unheard, "--device cpu") == Device::cpu);
  CHECK(choose_device(DeviceChoice::automatic, unheard, "--device auto") == Device::cpu);
  const std::string why = cuda::backend_missing().empty()
                              ? "no CUDA kernels yet for unheard_of, also_unheard_of"
                              : cuda::backend_missing();
  CHECK(message_of([&] { choose_device(DeviceChoice::cuda, unheard, "--device cuda"); }) ==
        "--device cuda: " + why);
  // The operations that exist: what is left to ask for is a device.
  const std::vector<std::string_view> ready{"adamw", "relu2", "rmsnorm"};
  const bool available = cuda::unavailable().empty();
  CHECK(choose_device(DeviceChoice::automatic, ready, "--device auto") ==
        (available ? Device::cuda : Device::cpu));
  if (available)
    CHECK(choose_device(DeviceChoice::cuda, ready, "--device cuda") == Device::cuda);
  else
    CHECK(message_of([&] { choose_device(DeviceChoice::cuda, ready, "x.yaml: device: cuda"); }) ==
          "x.yaml: device: cuda: " + cuda::unavailable());
}

// Above ops/ the device is a value that comes from choose_device().
TEST_CASE("device: a literal of the CPU above ops/ says why it means the host") {
  namespace fs = std::filesystem;
  for (const char* folder : {"model", "parallel", "data", "train"})
    for (const fs::path& file : fs::recursive_directory_iterator(source_dir() / folder)) {
      const std::string name = file.filename().string();
      if (!name.ends_with(".cpp") && !name.ends_with(".h")) continue;
      if (name.find("_test.") != name.npos || name.starts_with("test_")) continue;
      std::ifstream in(file);
      std::int64_t number = 0;
      for (std::string line; std::getline(in, line);) {
        ++number;
        CAPTURE(cat(file.string(), ":", number));
        CHECK((line.find("Device::cpu") == line.npos || line.find("//") != line.npos));
      }
    }
}
