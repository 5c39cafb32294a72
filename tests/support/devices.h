#pragma once
#include <doctest/doctest.h>

#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace nemocube::testing {

/// Whether the process has a CUDA device. The first call that finds none prints a line that says why the
/// tests on CUDA devices are left out; with NEMOCUBE_TEST_CUDA=required in the environment it ends the
/// process as failed.
bool has_cuda();

/// The CUDA device that tests use: the first, unless another one was named before.
Device cuda_device();
void use_cuda_device(Device device);

/// The devices that a test of an operation runs on: the CPU, Device::guard, and a CUDA device where there is
/// one. Tests that use it are in doctest's suite "cuda", which `make test-cuda` runs on the software GPU:
///     TEST_CASE("relu2: against the formula" * doctest::test_suite("cuda")) {
///       for (const Device device : test_devices()) {
std::vector<Device> test_devices();
/// Those of them that have all kernels of an operation.
std::vector<Device> test_devices(std::string_view op);

/// The dtypes that operations have on a device: those with f64 on the CPU, f32 and bf16 elsewhere.
std::vector<DType> test_dtypes(Device device);

/// Calls test(device, dtype) for each of the devices and each of their dtypes.
template <class Test>
void for_dtypes(const std::vector<Device>& devices, Test&& test) {
  for (const Device device : devices)
    for (const DType dtype : test_dtypes(device)) {
      CAPTURE(device);
      CAPTURE(dtype);
      test(device, dtype);
    }
}
template <class Test>
void for_dtypes(Test&& test) {
  for_dtypes(test_devices(), test);
}

}  // namespace nemocube::testing
