#include <unistd.h>

#include <fstream>
#include <numeric>
#include <set>

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

TEST_CASE("copies and fills of rows touch nothing between the rows") {
  const auto resident_bytes = [] {
    std::size_t all = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> all >> resident;
    return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  };
  constexpr std::size_t bytes = std::size_t{4} << 30, width = 4096, rows = 4, pitch = bytes / rows;
  void *first = nullptr, *second = nullptr;
  REQUIRE_OK(cudaMalloc(&first, bytes));
  REQUIRE_OK(cudaMalloc(&second, bytes));
  std::vector<int> values(rows * width / sizeof(int)), found(values.size());
  std::iota(values.begin(), values.end(), 0);
  const std::size_t before = resident_bytes();
  REQUIRE_OK(
      cudaMemcpy2DAsync(first, pitch, values.data(), width, width, rows, cudaMemcpyHostToDevice, nullptr));
  REQUIRE_OK(cudaMemcpy2DAsync(second, pitch, first, pitch, width, rows, cudaMemcpyDeviceToDevice, nullptr));
  REQUIRE_OK(cudaMemcpy2D(found.data(), width, second, pitch, width, rows, cudaMemcpyDeviceToHost));
  CHECK(found == values);
  REQUIRE_OK(cudaMemset2D(first, pitch, 1, width, rows));
  REQUIRE_OK(cudaMemcpy2D(found.data(), width, first, pitch, width, rows, cudaMemcpyDeviceToHost));
  CHECK(found == std::vector<int>(values.size(), 0x01010101));
  CHECK_OK(cudaDeviceSynchronize());
  const std::size_t after = resident_bytes();
  CHECK(after < before + (std::size_t{64} << 20));
  CHECK_OK(cudaFree(first));
  CHECK_OK(cudaFree(second));
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

TEST_CASE("a pool gives freed addresses back by chance, never memory that somebody holds") {
  TestStream stream;
  std::set<void*> addresses;
  constexpr int rounds = 20;
  for (int round = 0; round < rounds; ++round) {
    void *first = nullptr, *second = nullptr;
    REQUIRE_OK(cudaMallocAsync(&first, 4096, stream));
    REQUIRE_OK(cudaMallocAsync(&second, 4096, stream));
    CHECK(first != second);
    addresses.insert({first, second});
    // What the memory held before is gone.
    unsigned value = 0;
    REQUIRE_OK(cudaMemcpyAsync(&value, first, sizeof value, cudaMemcpyDeviceToHost, stream));
    REQUIRE_OK(cudaStreamSynchronize(stream));
    CHECK(value == 0x7fff'ffffu);
    REQUIRE_OK(cudaMemsetAsync(first, 0, 4096, stream));
    REQUIRE_OK(cudaFreeAsync(first, stream));
    REQUIRE_OK(cudaFreeAsync(second, stream));
    REQUIRE_OK(cudaStreamSynchronize(stream));
  }
  CHECK(addresses.size() < 2 * rounds);
  CHECK(addresses.size() > 2);
}

TEST_CASE("a pool that does not follow events gives addresses back in the stream of the free alone") {
  TestStream stream, other;
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location = {cudaMemLocationTypeDevice, 0};
  for (int follow : {0, 1}) {
    cudaMemPool_t pool;
    REQUIRE_OK(cudaMemPoolCreate(&pool, &props));
    REQUIRE_OK(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseFollowEventDependencies, &follow));
    std::set<void*> freed;
    bool again = false;
    for (int round = 0; round < 20; ++round) {
      void *here = nullptr, *there = nullptr;
      REQUIRE_OK(cudaMallocFromPoolAsync(&here, 2048, pool, stream));
      REQUIRE_OK(cudaFreeAsync(here, stream));
      REQUIRE_OK(cudaStreamSynchronize(stream));
      freed.insert(here);
      REQUIRE_OK(cudaMallocFromPoolAsync(&there, 2048, pool, other));
      again = again || freed.contains(there);
      REQUIRE_OK(cudaFree(there));
    }
    CHECK(again == (follow == 1));
    CHECK_OK(cudaMemPoolDestroy(pool));
  }
}

TEST_CASE("memory of a destroyed pool may be freed later") {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool;
  REQUIRE_OK(cudaMemPoolCreate(&pool, &properties));
  void *first = nullptr, *second = nullptr;
  REQUIRE_OK(cudaMallocFromPoolAsync(&first, 4096, pool, nullptr));
  REQUIRE_OK(cudaMallocFromPoolAsync(&second, 4096, pool, nullptr));
  REQUIRE_OK(cudaFreeAsync(first, nullptr));
  REQUIRE_OK(cudaMemPoolDestroy(pool));
  std::uint64_t used = 0;
  CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used) == cudaErrorInvalidValue);
  REQUIRE_OK(cudaMemset(second, 0, 4096));
  REQUIRE_OK(cudaFreeAsync(second, nullptr));
  REQUIRE_OK(cudaDeviceSynchronize());
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

TEST_CASE("hints for managed memory are given back") {
  constexpr std::size_t bytes = 1 << 20, half = bytes / 2;
  char* memory = nullptr;
  REQUIRE_OK(cudaMallocManaged(reinterpret_cast<void**>(&memory), bytes, cudaMemAttachGlobal));
  const cudaMemLocation device{cudaMemLocationTypeDevice, 0}, host{cudaMemLocationTypeHost, 0};
  const auto get = [&](cudaMemRangeAttribute which, std::size_t offset, std::size_t count) {
    int value = -100;
    CHECK_OK(cudaMemRangeGetAttribute(&value, sizeof value, which, memory + offset, count));
    return value;
  };
  CHECK(get(cudaMemRangeAttributeReadMostly, 0, bytes) == 0);
  CHECK(get(cudaMemRangeAttributePreferredLocation, 0, bytes) == cudaInvalidDeviceId);
  REQUIRE_OK(cudaMemAdvise(memory, half, cudaMemAdviseSetReadMostly, {}));
  CHECK(get(cudaMemRangeAttributeReadMostly, 0, half) == 1);
  CHECK(get(cudaMemRangeAttributeReadMostly, half, half) == 0);
  CHECK(get(cudaMemRangeAttributeReadMostly, 0, half + 1) == 0);  // not all of it
  REQUIRE_OK(cudaMemAdvise(memory, half, cudaMemAdviseUnsetReadMostly, {}));
  CHECK(get(cudaMemRangeAttributeReadMostly, 0, half) == 0);

  REQUIRE_OK(cudaMemAdvise(memory, half, cudaMemAdviseSetPreferredLocation, device));
  REQUIRE_OK(cudaMemAdvise(memory + half, half, cudaMemAdviseSetPreferredLocation, host));
  CHECK(get(cudaMemRangeAttributePreferredLocation, 0, half) == 0);
  CHECK(get(cudaMemRangeAttributePreferredLocationType, 0, half) == cudaMemLocationTypeDevice);
  CHECK(get(cudaMemRangeAttributePreferredLocation, half, half) == cudaCpuDeviceId);
  CHECK(get(cudaMemRangeAttributePreferredLocation, 0, bytes) == cudaInvalidDeviceId);

  REQUIRE_OK(cudaMemAdvise(memory, bytes, cudaMemAdviseSetAccessedBy, device));
  REQUIRE_OK(cudaMemAdvise(memory, half, cudaMemAdviseSetAccessedBy, host));
  int by[3];
  REQUIRE_OK(cudaMemRangeGetAttribute(by, sizeof by, cudaMemRangeAttributeAccessedBy, memory, half));
  CHECK(std::vector<int>(by, by + 3) == std::vector<int>{cudaCpuDeviceId, 0, cudaInvalidDeviceId});
  REQUIRE_OK(cudaMemRangeGetAttribute(by, sizeof by, cudaMemRangeAttributeAccessedBy, memory, bytes));
  CHECK(std::vector<int>(by, by + 3) == std::vector<int>{0, cudaInvalidDeviceId, cudaInvalidDeviceId});

  REQUIRE_OK(cudaMemPrefetchAsync(memory, bytes, device, 0, nullptr));
  CHECK(get(cudaMemRangeAttributeLastPrefetchLocation, 0, bytes) == 0);
  void* pieces[] = {memory, memory + 100, memory + half};
  std::size_t sizes[] = {100, half - 100, half}, firsts[] = {0, 2};
  cudaMemLocation places[] = {device, host};
  REQUIRE_OK(cudaMemPrefetchBatchAsync(pieces, sizes, 3, places, firsts, 2, 0, nullptr));
  CHECK(get(cudaMemRangeAttributeLastPrefetchLocation, 0, half) == 0);
  CHECK(get(cudaMemRangeAttributeLastPrefetchLocation, half, half) == cudaCpuDeviceId);

  int preferred = 0, prefetched = 0;
  void* values[] = {&preferred, &prefetched};
  std::size_t value_bytes[] = {sizeof(int), sizeof(int)};
  cudaMemRangeAttribute names[] = {cudaMemRangeAttributePreferredLocation,
                                   cudaMemRangeAttributeLastPrefetchLocation};
  REQUIRE_OK(cudaMemRangeGetAttributes(values, value_bytes, names, 2, memory + half, half));
  CHECK(preferred == cudaCpuDeviceId);
  CHECK(prefetched == cudaCpuDeviceId);

  CHECK(cudaMemAdvise(memory, bytes + 1, cudaMemAdviseSetReadMostly, {}) == cudaErrorInvalidValue);
  CHECK(cudaMemPrefetchAsync(memory, bytes, {cudaMemLocationTypeDevice, 99}, 0, nullptr) ==
        cudaErrorInvalidDevice);
  Ints plain(4);
  CHECK(cudaMemAdvise(plain, 16, cudaMemAdviseSetReadMostly, {}) == cudaErrorInvalidValue);
  cudaGetLastError();
  CHECK_OK(cudaFree(memory));
}

TEST_CASE("flags of pinned memory are kept, and unknown ones refused") {
  void* memory = nullptr;
  unsigned flags = 0;
  REQUIRE_OK(cudaHostAlloc(&memory, 100, cudaHostAllocPortable | cudaHostAllocWriteCombined));
  REQUIRE_OK(cudaHostGetFlags(&flags, static_cast<char*>(memory) + 50));
  CHECK(flags == (cudaHostAllocPortable | cudaHostAllocWriteCombined | cudaHostAllocMapped));
  CHECK_OK(cudaFreeHost(memory));
  CHECK(cudaHostAlloc(&memory, 100, 0x100) == cudaErrorInvalidValue);
  CHECK(cudaMallocManaged(&memory, 100, 77) == cudaErrorInvalidValue);
  int local = 0;
  CHECK(cudaHostGetFlags(&flags, &local) == cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_CASE("pools of places") {
  cudaMemLocation device{cudaMemLocationTypeDevice, 0}, host{cudaMemLocationTypeHost, 0};
  cudaMemPool_t standard, of_place;
  REQUIRE_OK(cudaDeviceGetDefaultMemPool(&standard, 0));
  REQUIRE_OK(cudaMemGetDefaultMemPool(&of_place, &device, cudaMemAllocationTypePinned));
  CHECK(of_place == standard);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = device;
  cudaMemPool_t own;
  REQUIRE_OK(cudaMemPoolCreate(&own, &properties));
  REQUIRE_OK(cudaMemSetMemPool(&device, cudaMemAllocationTypePinned, own));
  REQUIRE_OK(cudaMemGetMemPool(&of_place, &device, cudaMemAllocationTypePinned));
  CHECK(of_place == own);
  CHECK_OK(cudaMemPoolDestroy(own));
  CHECK(cudaMemGetMemPool(&of_place, &host, cudaMemAllocationTypePinned) == cudaErrorNotSupported);
  cudaGetLastError();
}
