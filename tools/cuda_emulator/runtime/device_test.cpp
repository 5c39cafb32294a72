#include "runtime/runtime_test.h"

using namespace emulator::test;

TEST_CASE("flags of a device are kept") {
  unsigned flags = 0;
  REQUIRE_OK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync | cudaDeviceSyncMemops));
  REQUIRE_OK(cudaGetDeviceFlags(&flags));
  CHECK(flags == (cudaDeviceScheduleBlockingSync | cudaDeviceSyncMemops | cudaDeviceMapHost));
  CHECK(cudaSetDeviceFlags(0x1000) == cudaErrorInvalidValue);
  REQUIRE_OK(cudaInitDevice(0, cudaDeviceScheduleSpin, cudaInitDeviceFlagsAreValid));
  REQUIRE_OK(cudaGetDeviceFlags(&flags));
  CHECK((flags & cudaDeviceScheduleMask) == cudaDeviceScheduleSpin);
  REQUIRE_OK(cudaSetDeviceFlags(cudaDeviceScheduleAuto));
  cudaGetLastError();
}
