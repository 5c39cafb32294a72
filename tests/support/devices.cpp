#include "tests/support/devices.h"

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "core/cuda/module.h"
#include "core/kernel.h"

namespace nemocube::testing {

bool has_cuda() {
  static const bool available = [] {
    const std::string& reason = cuda::unavailable();
    if (reason.empty()) return true;
    const char* wanted = std::getenv("NEMOCUBE_TEST_CUDA");
    const bool required = wanted && std::string_view(wanted) == "required";
    std::cout << (required ? "tests on cuda cannot run: " : "skipped: tests on cuda: ") << reason
              << std::endl;
    if (required) std::exit(1);
    return false;
  }();
  return available;
}

namespace {
Device device_in_use = Device::cuda;
}
Device cuda_device() { return device_in_use; }
void use_cuda_device(Device device) { device_in_use = device; }

std::vector<Device> test_devices() {
  std::vector<Device> devices{Device::cpu, Device::guard};
  if (has_cuda()) devices.push_back(cuda_device());
  return devices;
}

std::vector<Device> test_devices(std::string_view op) {
  std::vector<Device> devices{Device::cpu, Device::guard};
  if (runs_on_cuda(op) && has_cuda()) devices.push_back(cuda_device());
  return devices;
}

std::vector<DType> test_dtypes(Device device) {
  if (!device.is_cuda()) return {DType::f64, DType::f32, DType::bf16};
  return {DType::f32, DType::bf16};
}

}  // namespace nemocube::testing
