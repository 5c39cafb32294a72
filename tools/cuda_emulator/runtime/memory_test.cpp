#include <numeric>

#include "runtime/runtime_test.h"

using namespace emulator::test;

TEST_CASE("rows with pitches, and boxes") {
  constexpr int width = 5, height = 4, depth = 3;
  std::vector<int> box(width * height * depth);
  std::iota(box.begin(), box.end(), 0);
  cudaPitchedPtr device;
  REQUIRE_OK(cudaMalloc3D(&device, {width * sizeof(int), height, depth}));
  CHECK(device.pitch % 512 == 0);
  cudaMemcpy3DParms params{};
  params.srcPtr = {box.data(), width * sizeof(int), width * sizeof(int), height};
  params.dstPtr = device;
  params.extent = {width * sizeof(int), height, depth};
  params.kind = cudaMemcpyHostToDevice;
  REQUIRE_OK(cudaMemcpy3D(&params));
  // The second slice without its first row and column.
  std::vector<int> part((width - 1) * (height - 1), -1);
  cudaMemcpy3DParms back{};
  back.srcPtr = device;
  back.srcPos = {sizeof(int), 1, 1};
  back.dstPtr = {part.data(), (width - 1) * sizeof(int), (width - 1) * sizeof(int), height - 1};
  back.extent = {(width - 1) * sizeof(int), height - 1, 1};
  back.kind = cudaMemcpyDeviceToHost;
  REQUIRE_OK(cudaMemcpy3D(&back));
  for (int y = 0; y < height - 1; ++y) {
    for (int x = 0; x < width - 1; ++x)
      CHECK(part[y * (width - 1) + x] == ((1 * height + y + 1) * width) + x + 1);
  }
  std::vector<int> rows(width * 2);
  REQUIRE_OK(cudaMemset2D(device.ptr, device.pitch, 0, width * sizeof(int), 1));
  REQUIRE_OK(cudaMemcpy2D(rows.data(), width * sizeof(int), device.ptr, device.pitch, width * sizeof(int), 2,
                          cudaMemcpyDefault));
  CHECK(rows == std::vector<int>{0, 0, 0, 0, 0, 5, 6, 7, 8, 9});
  CHECK(cudaMemcpy2D(rows.data(), 4, device.ptr, device.pitch, 8, 2, cudaMemcpyDefault) ==
        cudaErrorInvalidPitchValue);
  cudaGetLastError();
  CHECK_OK(cudaFree(device.ptr));
}

TEST_CASE("what a pointer points to") {
  cudaPointerAttributes attributes;
  int local = 0;
  REQUIRE_OK(cudaPointerGetAttributes(&attributes, &local));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  Ints device(4);
  REQUIRE_OK(cudaPointerGetAttributes(&attributes, device + 2));
  CHECK(attributes.type == cudaMemoryTypeDevice);
  CHECK(attributes.devicePointer == device + 2);
  CHECK(attributes.hostPointer == nullptr);
  int* managed = nullptr;
  REQUIRE_OK(cudaMallocManaged(reinterpret_cast<void**>(&managed), 16, cudaMemAttachGlobal));
  *managed = 3;  // the host uses it at its own address
  REQUIRE_OK(cudaPointerGetAttributes(&attributes, managed));
  CHECK(attributes.type == cudaMemoryTypeManaged);
  CHECK_OK(cudaFree(managed));
  std::vector<int> host(1000);
  REQUIRE_OK(cudaHostRegister(host.data(), 4000, cudaHostRegisterDefault));
  REQUIRE_OK(cudaPointerGetAttributes(&attributes, host.data() + 10));
  CHECK(attributes.type == cudaMemoryTypeHost);
  CHECK(cudaHostRegister(host.data(), 4000, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
  CHECK_OK(cudaHostUnregister(host.data()));
  CHECK(cudaHostUnregister(host.data()) == cudaErrorHostMemoryNotRegistered);
  cudaGetLastError();
}

TEST_CASE("memory in use, and a device that is full") {
  std::size_t before = 0, during = 0, total = 0;
  REQUIRE_OK(cudaMemGetInfo(&before, &total));
  CHECK(total > 0);
  void* pointer = nullptr;
  REQUIRE_OK(cudaMalloc(&pointer, 1 << 20));
  REQUIRE_OK(cudaMemGetInfo(&during, &total));
  CHECK(before - during >= 1 << 20);
  CHECK_OK(cudaFree(pointer));
  CHECK(cudaMalloc(&pointer, total + 1) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK_OK(cudaFree(nullptr));
}

TEST_CASE("pools keep books") {
  TestStream stream;
  cudaMemPool_t pool;
  REQUIRE_OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  std::uint64_t before = 0, used = 0, high = 0;
  REQUIRE_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &before));
  void* pointer = nullptr;
  REQUIRE_OK(cudaMallocAsync(&pointer, 4096, stream));
  REQUIRE_OK(cudaMemsetAsync(pointer, 0, 4096, stream));
  REQUIRE_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  CHECK(used == before + 4096);
  REQUIRE_OK(cudaFreeAsync(pointer, stream));
  REQUIRE_OK(cudaStreamSynchronize(stream));
  REQUIRE_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  REQUIRE_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &high));
  CHECK(used == before);
  CHECK(high >= before + 4096);
  std::uint64_t threshold = UINT64_MAX;
  REQUIRE_OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  threshold = 0;
  REQUIRE_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  CHECK(threshold == UINT64_MAX);
}

TEST_CASE("the device is an H100") {
  cudaDeviceProp p;
  REQUIRE_OK(cudaGetDeviceProperties(&p, 0));
  CHECK(p.major == 9);
  CHECK(p.minor == 0);
  CHECK(p.multiProcessorCount == 132);
  CHECK(p.sharedMemPerBlockOptin == 232448);
  int value = 0;
  REQUIRE_OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
  CHECK(value == 132);
  CHECK(cudaSetDevice(1000) == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(std::string(cudaGetErrorName(cudaErrorMemoryAllocation)) == "cudaErrorMemoryAllocation");
  CHECK(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
}
