#include "machine/device.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "counters/l2.h"
#include "instructions/system_call.h"
#include "machine/report.h"
#include "memory/address_space.h"
#include "runtime/api.h"

namespace emulator {

int device_count() {
  static const int count = [] {
    const char* const text = std::getenv("CUDA_EMULATOR_DEVICES");
    const int n = text ? std::atoi(text) : 1;
    return n < 0 ? 0 : n > 64 ? 64 : n;
  }();
  return count;
}

int& current_device() {
  thread_local int device = 0;
  return device;
}

}  // namespace emulator

using namespace emulator;

namespace {

void check_device(int device) { require(device >= 0 && device < device_count(), cudaErrorInvalidDevice); }

std::size_t memory_bytes(int device) {
  std::uint64_t free_now = 0, total = 0;
  AddressSpace::instance().usage(device, free_now, total);
  return total;
}

cudaDeviceProp properties(int device) {
  cudaDeviceProp p{};
  std::snprintf(p.name, sizeof p.name, "NVIDIA H100 80GB HBM3 (emulated)");
  std::memcpy(p.uuid.bytes, "cuda_emulator:", 14);
  p.uuid.bytes[15] = static_cast<char>(device);
  p.totalGlobalMem = memory_bytes(device);
  p.sharedMemPerBlock = h100::shared_per_block;
  p.regsPerBlock = static_cast<int>(h100::registers_per_block);
  p.warpSize = 32;
  p.memPitch = 0x7fff'ffff;
  p.maxThreadsPerBlock = static_cast<int>(h100::threads_per_block);
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fff'ffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 65536;
  p.major = 9;
  p.minor = 0;
  p.textureAlignment = 512;
  p.texturePitchAlignment = 32;
  p.multiProcessorCount = h100::multiprocessors;
  p.canMapHostMemory = 1;
  p.surfaceAlignment = 512;
  p.concurrentKernels = 1;
  p.ECCEnabled = 1;
  p.pciBusID = 0x10 + device;
  p.asyncEngineCount = 3;
  p.unifiedAddressing = 1;
  p.memoryBusWidth = 5120;
  p.l2CacheSize = static_cast<int>(l2_bytes());
  p.persistingL2CacheMaxSize = static_cast<int>(l2_bytes() * 5 / 8);
  p.maxThreadsPerMultiProcessor = h100::threads_per_multiprocessor;
  p.streamPrioritiesSupported = 1;
  p.globalL1CacheSupported = 1;
  p.localL1CacheSupported = 1;
  p.sharedMemPerMultiprocessor = h100::shared_per_multiprocessor;
  p.regsPerMultiprocessor = static_cast<int>(h100::registers_per_block);
  p.managedMemory = 1;
  p.concurrentManagedAccess = 1;
  p.computePreemptionSupported = 1;
  p.canUseHostPointerForRegisteredMem = 1;
  p.cooperativeLaunch = 1;
  p.sharedMemPerBlockOptin = h100::shared_per_block_optin;
  p.maxBlocksPerMultiProcessor = h100::blocks_per_multiprocessor;
  p.accessPolicyMaxWindowSize = static_cast<int>(h100::access_window_bytes);
  p.reservedSharedMemPerBlock = h100::reserved_shared_per_block;
  p.hostRegisterSupported = 1;
  p.memoryPoolsSupported = 1;
  p.memoryPoolSupportedHandleTypes = cudaMemHandleTypePosixFileDescriptor;
  p.ipcEventSupported = 1;
  p.unifiedFunctionPointers = 1;
  p.deviceNumaId = -1;
  p.hostNumaId = -1;
  return p;
}

/// Attributes that are fields of cudaDeviceProp, and the rest.
int attribute(cudaDeviceAttr which, int device) {
  const cudaDeviceProp p = properties(device);
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock:
      return p.maxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimX:
      return p.maxThreadsDim[0];
    case cudaDevAttrMaxBlockDimY:
      return p.maxThreadsDim[1];
    case cudaDevAttrMaxBlockDimZ:
      return p.maxThreadsDim[2];
    case cudaDevAttrMaxGridDimX:
      return p.maxGridSize[0];
    case cudaDevAttrMaxGridDimY:
      return p.maxGridSize[1];
    case cudaDevAttrMaxGridDimZ:
      return p.maxGridSize[2];
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return static_cast<int>(p.sharedMemPerBlock);
    case cudaDevAttrTotalConstantMemory:
      return static_cast<int>(p.totalConstMem);
    case cudaDevAttrWarpSize:
      return p.warpSize;
    case cudaDevAttrMaxPitch:
      return static_cast<int>(p.memPitch);
    case cudaDevAttrMaxRegistersPerBlock:
      return p.regsPerBlock;
    case cudaDevAttrClockRate:
      return h100::clock_khz;
    case cudaDevAttrTextureAlignment:
      return static_cast<int>(p.textureAlignment);
    case cudaDevAttrGpuOverlap:
      return 1;
    case cudaDevAttrMultiProcessorCount:
      return p.multiProcessorCount;
    case cudaDevAttrCanMapHostMemory:
      return p.canMapHostMemory;
    case cudaDevAttrSurfaceAlignment:
      return static_cast<int>(p.surfaceAlignment);
    case cudaDevAttrConcurrentKernels:
      return p.concurrentKernels;
    case cudaDevAttrEccEnabled:
      return p.ECCEnabled;
    case cudaDevAttrPciBusId:
      return p.pciBusID;
    case cudaDevAttrPciDeviceId:
      return p.pciDeviceID;
    case cudaDevAttrPciDomainId:
      return p.pciDomainID;
    case cudaDevAttrMemoryClockRate:
      return h100::memory_clock_khz;
    case cudaDevAttrGlobalMemoryBusWidth:
      return p.memoryBusWidth;
    case cudaDevAttrL2CacheSize:
      return p.l2CacheSize;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrAsyncEngineCount:
      return p.asyncEngineCount;
    case cudaDevAttrUnifiedAddressing:
      return p.unifiedAddressing;
    case cudaDevAttrTexturePitchAlignment:
      return static_cast<int>(p.texturePitchAlignment);
    case cudaDevAttrComputeCapabilityMajor:
      return p.major;
    case cudaDevAttrComputeCapabilityMinor:
      return p.minor;
    case cudaDevAttrStreamPrioritiesSupported:
      return p.streamPrioritiesSupported;
    case cudaDevAttrGlobalL1CacheSupported:
      return p.globalL1CacheSupported;
    case cudaDevAttrLocalL1CacheSupported:
      return p.localL1CacheSupported;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return static_cast<int>(p.sharedMemPerMultiprocessor);
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return p.regsPerMultiprocessor;
    case cudaDevAttrManagedMemory:
      return p.managedMemory;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio:
      return 2;
    case cudaDevAttrConcurrentManagedAccess:
      return p.concurrentManagedAccess;
    case cudaDevAttrComputePreemptionSupported:
      return p.computePreemptionSupported;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      return p.canUseHostPointerForRegisteredMem;
    case cudaDevAttrCooperativeLaunch:
      return p.cooperativeLaunch;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return static_cast<int>(p.sharedMemPerBlockOptin);
    case cudaDevAttrHostRegisterSupported:
      return p.hostRegisterSupported;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return p.maxBlocksPerMultiProcessor;
    case cudaDevAttrMaxPersistingL2CacheSize:
      return p.persistingL2CacheMaxSize;
    case cudaDevAttrMaxAccessPolicyWindowSize:
      return p.accessPolicyMaxWindowSize;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return static_cast<int>(p.reservedSharedMemPerBlock);
    case cudaDevAttrMemoryPoolsSupported:
      return p.memoryPoolsSupported;
    case cudaDevAttrMemoryPoolSupportedHandleTypes:
      return static_cast<int>(p.memoryPoolSupportedHandleTypes);
    case cudaDevAttrIpcEventSupport:
      return p.ipcEventSupported;
    case cudaDevAttrMemSyncDomainCount:
      return 4;
    case cudaDevAttrNumaId:
    case cudaDevAttrHostNumaId:
      return -1;
    default:
      return 0;  // what the virtual device does not have: textures, clusters ...
  }
}

std::set<std::pair<int, int>>& peers() {
  static auto* const enabled = new std::set<std::pair<int, int>>;
  return *enabled;
}
std::mutex& peers_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

/// Flags of cudaSetDeviceFlags, which have no effect here: how the host waits, and mapped memory, which there always is.
std::atomic<unsigned>& kept_flags(int device) {
  static std::atomic<unsigned> flags[64];
  return flags[device];
}

/// Limits that have no effect here, by number of cudaLimit: what was set is given back.
std::size_t& kept_limit(cudaLimit which) {
  static std::size_t values[] = {1024, 0, 0, 2, 2048, 128, 0};
  require(which >= 0 && static_cast<std::size_t>(which) < std::size(values), cudaErrorUnsupportedLimit);
  return values[which];
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return remember(cudaErrorInvalidValue);
  *count = device_count();
  return remember(device_count() ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  if (inside_host_function()) return remember(cudaErrorNotPermitted);
  if (device < 0 || device >= device_count()) return remember(cudaErrorInvalidDevice);
  current_device() = device;
  return remember(entry_error());
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  return api("cudaInitDevice", [&] {
    check_device(device);
    require((flags & ~cudaInitDeviceFlagsAreValid) == 0 && (device_flags & ~cudaDeviceMask) == 0);
    if (flags & cudaInitDeviceFlagsAreValid) kept_flags(device) = device_flags;
  });
}

cudaError_t cudaGetDevice(int* device) {
  if (!device) return remember(cudaErrorInvalidValue);
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetValidDevices(int*, int) { return cudaSuccess; }
cudaError_t cudaSetDeviceFlags(unsigned flags) {
  return api("cudaSetDeviceFlags", [&] {
    require((flags & ~cudaDeviceMask) == 0);
    kept_flags(current_device()) = flags;
  });
}
cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return api("cudaGetDeviceFlags", [&] {
    require(flags);
    *flags = kept_flags(current_device()) | cudaDeviceMapHost;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  return api("cudaGetDeviceProperties", [&] {
    require(p);
    check_device(device);
    *p = properties(device);
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  return api("cudaDeviceGetAttribute", [&] {
    require(value && which > 0 && which < cudaDevAttrMax);
    check_device(device);
    *value = attribute(which, device);
  });
}

cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) {
  return api("cudaChooseDevice", [&] {
    require(device);
    *device = 0;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return api("cudaDeviceSynchronize", [] {
    forbid_in_capture();
    Scheduler::instance().wait_device(current_device());
  });
}

cudaError_t cudaDeviceReset() {
  Scheduler::instance().reset_device(current_device());
  flush_printf();
  for (Allocation* const allocation : AddressSpace::instance().live()) {
    const bool ours =
        allocation->kind == AllocationKind::device || allocation->kind == AllocationKind::stream_ordered;
    if (ours && allocation->device == current_device()) AddressSpace::instance().free(*allocation);
  }
  cudaGetLastError();
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (!version) return remember(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaDeviceSetLimit(cudaLimit which, std::size_t value) {
  return api("cudaDeviceSetLimit", [&] {
    switch (which) {
      case cudaLimitPrintfFifoSize:
        set_printf_limit(value);
        return;
      case cudaLimitMallocHeapSize:
        set_heap_limit(value);
        return;
      default:
        kept_limit(which) = value;
        return;
    }
  });
}

cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit which) {
  return api("cudaDeviceGetLimit", [&] {
    require(value);
    switch (which) {
      case cudaLimitPrintfFifoSize:
        *value = printf_limit();
        return;
      case cudaLimitMallocHeapSize:
        *value = heap_limit();
        return;
      default:
        *value = kept_limit(which);
        return;
    }
  });
}

cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  return api("cudaDeviceGetCacheConfig", [&] {
    require(config);
    *config = cudaFuncCachePreferNone;
  });
}

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return remember(cudaSuccess); }
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return remember(cudaSuccess); }
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config) {
  if (!config) return remember(cudaErrorInvalidValue);
  *config = cudaSharedMemBankSizeFourByte;
  return cudaSuccess;
}
cudaError_t cudaCtxResetPersistingL2Cache() { return remember(cudaSuccess); }

cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  return api("cudaDeviceGetPCIBusId", [&] {
    require(id && bytes > 0);
    check_device(device);
    const cudaDeviceProp p = properties(device);
    std::snprintf(id, static_cast<std::size_t>(bytes), "%08x:%02x:%02x.0", p.pciDomainID, p.pciBusID,
                  p.pciDeviceID);
  });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  return api("cudaDeviceGetByPCIBusId", [&] {
    require(device && id);
    unsigned domain = 0, bus = 0, slot = 0;
    require(std::sscanf(id, "%x:%x:%x", &domain, &bus, &slot) == 3 ||
            std::sscanf(id, "%x:%x", &bus, &slot) == 2);
    const int found = static_cast<int>(bus) - 0x10;
    check_device(found);
    *device = found;
  });
}

// Peers: every device can be given access to every other one.

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return api("cudaDeviceCanAccessPeer", [&] {
    require(can);
    check_device(device);
    check_device(peer);
    *can = device != peer;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return api("cudaDeviceEnablePeerAccess", [&] {
    require(flags == 0);
    check_device(peer);
    require(peer != current_device(), cudaErrorInvalidDevice);
    const std::lock_guard lock(peers_mutex());
    require(peers().emplace(current_device(), peer).second, cudaErrorPeerAccessAlreadyEnabled);
    AddressSpace::instance().set_peer_access(current_device(), peer, true);
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return api("cudaDeviceDisablePeerAccess", [&] {
    check_device(peer);
    const std::lock_guard lock(peers_mutex());
    require(peers().contains({current_device(), peer}), cudaErrorPeerAccessNotEnabled);
    Scheduler::instance().wait_device(current_device(),
                                      false);  // kernels that were launched before may still reach the peer
    peers().erase({current_device(), peer});
    AddressSpace::instance().set_peer_access(current_device(), peer, false);
  });
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr which, int from, int to) {
  return api("cudaDeviceGetP2PAttribute", [&] {
    require(value);
    check_device(from);
    check_device(to);
    require(from != to, cudaErrorInvalidDevice);
    *value = which == cudaDevP2PAttrAccessSupported || which == cudaDevP2PAttrNativeAtomicSupported;
  });
}

// There is no driver API behind the runtime: programs that ask for its functions find none.

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* status) {
  return api("cudaGetDriverEntryPointByVersion", [&] {
    require(symbol && function);
    *function = nullptr;
    report(Severity::warning, "not-supported", std::string("driver function ") + symbol + " is not emulated");
    if (status) *status = cudaDriverEntryPointSymbolNotFound;
    require(status, cudaErrorSymbolNotFound);
  });
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}

cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** function, unsigned version,
                                                  unsigned long long flags,
                                                  cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, version, flags, status);
}

cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function, unsigned long long flags,
                                         cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}
}
