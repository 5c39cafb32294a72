#include "runtime/occupancy.h"

#include <cuda_occupancy.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "machine/device.h"
#include "machine/report.h"
#include "machine/resources.h"
#include "runtime/api.h"

namespace emulator {
namespace {

cudaOccDeviceProp occupancy_device() {
  cudaOccDeviceProp p{};
  p.computeMajor = 9;
  p.maxThreadsPerBlock = static_cast<int>(h100::threads_per_block);
  p.maxThreadsPerMultiprocessor = h100::threads_per_multiprocessor;
  p.regsPerBlock = p.regsPerMultiprocessor = static_cast<int>(h100::registers_per_block);
  p.warpSize = 32;
  p.sharedMemPerBlock = h100::shared_per_block;
  p.sharedMemPerMultiprocessor = h100::shared_per_multiprocessor;
  p.numSms = h100::multiprocessors;
  p.sharedMemPerBlockOptin = h100::shared_per_block_optin;
  p.reservedSharedMemPerBlock = h100::reserved_shared_per_block;
  return p;
}

int most_threads(const Kernel& kernel) {
  const ptx::Dim3 most = kernel.required_threads.x ? kernel.required_threads : kernel.max_threads;
  if (!most.x) return static_cast<int>(h100::threads_per_block);
  return static_cast<int>(std::min(most.x * most.y * most.z, h100::threads_per_block));
}

cudaOccFuncAttributes occupancy_kernel(const RegisteredKernel& registered, const Kernel& kernel,
                                       std::size_t dynamic_shared) {
  const KernelResources& resources = resources_of(kernel);
  cudaOccFuncAttributes a{};
  a.maxThreadsPerBlock = most_threads(kernel);
  a.numRegs = static_cast<int>(resources.registers);
  a.sharedSizeBytes = kernel.static_shared;
  a.partitionedGCConfig = PARTITIONED_GC_OFF;
  a.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  a.maxDynamicSharedSizeBytes =
      std::max(dynamic_shared, static_cast<std::size_t>(registered.max_dynamic_shared.value_or(0)));
  a.numBlockBarriers = 1;
  return a;
}

struct Found {
  RegisteredKernel* registered;
  const Kernel* kernel;
};
Found find(const void* function) {
  RegisteredKernel* const registered = find_kernel(function);
  require(registered, cudaErrorInvalidDeviceFunction);
  const Kernel* const kernel = registered->on(current_device());
  require(kernel, cudaErrorInvalidDeviceFunction);
  return {registered, kernel};
}

}  // namespace

int active_blocks(const RegisteredKernel& registered, const Kernel& kernel, int threads,
                  std::size_t dynamic_shared) {
  const cudaOccDeviceProp device = occupancy_device();
  const cudaOccFuncAttributes attributes = occupancy_kernel(registered, kernel, dynamic_shared);
  cudaOccDeviceState state{};
  state.carveoutConfig = registered.carveout;
  cudaOccResult result{};
  const cudaOccError error =
      cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &attributes, &state, threads, dynamic_shared);
  require(error == CUDA_OCC_SUCCESS);
  return result.activeBlocksPerMultiprocessor;
}

}  // namespace emulator

using namespace emulator;

namespace {

/// cudaFuncSetAttribute, and the same through a kernel handle.
void set_attribute(const Found& found, cudaFuncAttribute which, int value) {
  RegisteredKernel& registered = *found.registered;
  switch (which) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      require(value >= 0 &&
              static_cast<std::size_t>(value) + found.kernel->static_shared <= h100::shared_per_block_optin);
      registered.max_dynamic_shared = value;
      return;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      require(value >= -1 && value <= 100);
      registered.carveout = value;
      return;
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      registered.non_portable_cluster = value != 0;
      return;
    case cudaFuncAttributeClusterSchedulingPolicyPreference:
      return;
    default:
      throw ApiError{cudaErrorInvalidValue};
  }
}

}  // namespace

extern "C" {

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return api("cudaFuncGetAttributes", [&] {
    require(attributes);
    const Found found = find(function);
    const KernelResources& resources = resources_of(*found.kernel);
    cudaFuncAttributes a{};
    a.sharedSizeBytes = found.kernel->static_shared;
    a.localSizeBytes = resources.stack_bytes;
    a.maxThreadsPerBlock = most_threads(*found.kernel);
    a.numRegs = static_cast<int>(resources.registers);
    a.ptxVersion = found.registered->binary->architecture();
    a.binaryVersion = 90;
    a.maxDynamicSharedSizeBytes = found.registered->max_dynamic_shared.value_or(static_cast<int>(
        h100::shared_per_block - std::min<std::size_t>(found.kernel->static_shared, h100::shared_per_block)));
    a.preferredShmemCarveout = found.registered->carveout;
    a.nonPortableClusterSizeAllowed = found.registered->non_portable_cluster;
    *attributes = a;
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute which, int value) {
  return api("cudaFuncSetAttribute", [&] { set_attribute(find(function), which, value); });
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute which, int value, int) {
  return api("cudaKernelSetAttributeForDevice", [&] { set_attribute(find(kernel), which, value); });
}

cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
  return api("cudaFuncSetCacheConfig", [&] { find(function); });
}

cudaError_t cudaFuncSetSharedMemConfig(const void* function, cudaSharedMemConfig) {
  return api("cudaFuncSetSharedMemConfig", [&] { find(function); });
}

cudaError_t cudaFuncGetParamInfo(const void* function, std::size_t index, std::size_t* offset,
                                 std::size_t* bytes) {
  return api("cudaFuncGetParamInfo", [&] {
    const Found found = find(function);
    require(index < found.kernel->parameters.size());
    if (offset) *offset = found.kernel->parameters[index].offset;
    if (bytes) *bytes = found.kernel->parameters[index].bytes;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                   int threads, std::size_t dynamic_shared,
                                                                   unsigned) {
  return api("cudaOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
    require(blocks && threads > 0);
    const Found found = find(function);
    *blocks = active_blocks(*found.registered, *found.kernel, threads, dynamic_shared);
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          std::size_t dynamic_shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, dynamic_shared, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, const void* function, int blocks,
                                                      int threads) {
  return api("cudaOccupancyAvailableDynamicSMemPerBlock", [&] {
    require(bytes && blocks > 0 && threads > 0);
    const Found found = find(function);
    const cudaOccDeviceProp device = occupancy_device();
    // Without cudaFuncAttributeMaxDynamicSharedMemorySize a kernel may have 48 KiB in all.
    const std::size_t allowed =
        h100::shared_per_block - std::min<std::size_t>(h100::shared_per_block, found.kernel->static_shared);
    const cudaOccFuncAttributes attributes = occupancy_kernel(*found.registered, *found.kernel, allowed);
    cudaOccDeviceState state{};
    state.carveoutConfig = found.registered->carveout;
    require(cudaOccAvailableDynamicSMemPerBlock(bytes, &device, &attributes, &state, blocks, threads) ==
            CUDA_OCC_SUCCESS);
  });
}

// Clusters of several blocks are not supported; a cluster of one block is a block.

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* function, const cudaLaunchConfig_t*) {
  return api("cudaOccupancyMaxPotentialClusterSize", [&] {
    require(size);
    find(function);
    *size = 1;
  });
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                           const cudaLaunchConfig_t* config) {
  return api("cudaOccupancyMaxActiveClusters", [&] {
    require(clusters && config);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const cudaLaunchAttribute& attribute = config->attrs[i];
      const auto& d = attribute.val.clusterDim;
      require(attribute.id != cudaLaunchAttributeClusterDimension || d.x * d.y * d.z <= 1,
              cudaErrorNotSupported);
    }
    const Found found = find(function);
    const dim3 block = config->blockDim;
    *clusters = h100::multiprocessors * active_blocks(*found.registered, *found.kernel,
                                                      static_cast<int>(block.x * block.y * block.z),
                                                      config->dynamicSmemBytes);
  });
}
}
