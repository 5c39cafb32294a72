#include <cuda_runtime_api.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "machine/report.h"
#include "memory/address_space.h"
#include "runtime/api.h"
#include "runtime/copy.h"
#include "runtime/graph.h"
#include "runtime/ipc.h"
#include "runtime/pool.h"
#include "runtime/registration.h"

using namespace emulator;

namespace {

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
Region linear(const void* pointer) { return {address_of(pointer)}; }

void* allocate(AllocationKind kind, std::size_t bytes, const char* label) {
  forbid_in_capture();
  if (bytes == 0) return nullptr;
  Allocation* const allocation = AddressSpace::instance().allocate(kind, current_device(), bytes, label);
  require(allocation, cudaErrorMemoryAllocation);
  return reinterpret_cast<void*>(allocation->begin);
}

/// Flags of cudaHostAlloc by address. They have no effect: all pinned memory is mapped and belongs to all devices.
struct PinnedFlags {
  std::mutex mutex;
  std::map<std::uint64_t, unsigned> by_address;
};
PinnedFlags& pinned_flags() {
  static auto* const instance = new PinnedFlags;
  return *instance;
}

void* allocate_pinned(std::size_t bytes, const char* label, unsigned flags = cudaHostAllocDefault) {
  forbid_in_capture();
  if (bytes == 0) return nullptr;
  void* const memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  require(memory, cudaErrorMemoryAllocation);
  AddressSpace::instance().add_host(AllocationKind::pinned_host, memory, bytes, label);
  const std::lock_guard lock(pinned_flags().mutex);
  pinned_flags().by_address[address_of(memory)] = flags;
  return memory;
}

/// Waits for the work that may use the memory, as the hardware's driver does, without making that order known to the checks.
void settle() {
  for (int device = 0; device < device_count(); ++device) Scheduler::instance().wait_device(device, false);
}

void free_device(void* pointer) {
  forbid_in_capture();
  if (!pointer) return;
  settle();
  if (free_graph_memory(pointer)) return;
  AddressSpace& space = AddressSpace::instance();
  Allocation* const allocation = space.starting_at(address_of(pointer));
  if (!allocation || allocation->kind == AllocationKind::pinned_host ||
      allocation->kind == AllocationKind::registered_host || allocation->kind == AllocationKind::variable ||
      allocation->kind == AllocationKind::system) {
    report(Severity::error, "invalid-free",
           freed_device_memory(address_of(pointer)) ? "cudaFree: " + space.describe(address_of(pointer))
                                                    : "cudaFree of a pointer that no allocation begins at");
    throw ApiError{cudaErrorInvalidValue};
  }
  if (opened_by_handle(allocation->begin)) {
    report(Severity::error, "invalid-free", "cudaFree of memory that cudaIpcOpenMemHandle gave");
    throw ApiError{cudaErrorInvalidValue};
  }
  forget_pooled(*allocation);
  space.free(*allocation);
}

void free_pinned(void* pointer) {
  forbid_in_capture();
  if (!pointer) return;
  settle();
  Allocation* const allocation = AddressSpace::instance().starting_at(address_of(pointer));
  if (!allocation || allocation->kind != AllocationKind::pinned_host) {
    report(Severity::error, "invalid-free",
           "cudaFreeHost of a pointer that cudaMallocHost or cudaHostAlloc did not give");
    throw ApiError{cudaErrorInvalidValue};
  }
  AddressSpace::instance().free(*allocation);
  std::free(pointer);
}

void copy_3d(const cudaMemcpy3DParms* p, Stream& stream, bool blocking, const char* name) {
  require(p);
  require(!p->srcArray && !p->dstArray, cudaErrorNotSupported);
  const Box box = box_of(p->dstPtr, p->dstPos, p->srcPtr, p->srcPos, p->extent);
  copy(stream, box.destination, box.source, box.extent, p->kind, blocking, name);
}

void copy_3d_peer(const cudaMemcpy3DPeerParms* p, Stream& stream, bool blocking, const char* name) {
  require(p);
  require(!p->srcArray && !p->dstArray, cudaErrorNotSupported);
  const Box box = box_of(p->dstPtr, p->dstPos, p->srcPtr, p->srcPos, p->extent);
  copy(stream, box.destination, box.source, box.extent, cudaMemcpyDeviceToDevice, blocking, name);
}

/// Fills of pinned host memory are over when the call returns.
void fill_and_settle(Stream& stream, Region region, Extent extent, int value, const char* name) {
  fill(stream, region, extent, static_cast<std::uint32_t>(value) & 0xff, 1, name);
  if (locate(reinterpret_cast<void*>(region.address)).side == Side::pinned)
    Scheduler::instance().wait_stream(stream);
}

constexpr std::size_t row_alignment = 512;  // of cudaMallocPitch

}  // namespace

extern "C" {

// Allocation.

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return api("cudaMalloc", [&] {
    require(pointer);
    *pointer = allocate(AllocationKind::device, bytes, "cudaMalloc");
  });
}

cudaError_t cudaMallocManaged(void** pointer, std::size_t bytes, unsigned flags) {
  return api("cudaMallocManaged", [&] {
    require(pointer && bytes && (flags == cudaMemAttachGlobal || flags == cudaMemAttachHost));
    *pointer = allocate(AllocationKind::managed, bytes, "cudaMallocManaged");
  });
}

cudaError_t cudaMallocPitch(void** pointer, std::size_t* pitch, std::size_t width, std::size_t height) {
  return api("cudaMallocPitch", [&] {
    require(pointer && pitch);
    *pitch = (width + row_alignment - 1) / row_alignment * row_alignment;
    *pointer = allocate(AllocationKind::device, *pitch * height, "cudaMallocPitch");
  });
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent) {
  return api("cudaMalloc3D", [&] {
    require(pointer);
    const std::size_t pitch = (extent.width + row_alignment - 1) / row_alignment * row_alignment;
    *pointer = {allocate(AllocationKind::device, pitch * extent.height * extent.depth, "cudaMalloc3D"), pitch,
                extent.width, extent.height};
  });
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  return api("cudaMallocHost", [&] {
    require(pointer);
    *pointer = allocate_pinned(bytes, "cudaMallocHost");
  });
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  return api("cudaHostAlloc", [&] {
    require(pointer && flags <= (cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined));
    *pointer = allocate_pinned(bytes, "cudaHostAlloc", flags);
  });
}

cudaError_t cudaFree(void* pointer) {
  return api("cudaFree", [&] { free_device(pointer); });
}

cudaError_t cudaFreeHost(void* pointer) {
  return api("cudaFreeHost", [&] { free_pinned(pointer); });
}

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  return api("cudaHostRegister", [&] {
    require(pointer && bytes);
    require(!AddressSpace::instance().find(address_of(pointer)), cudaErrorHostMemoryAlreadyRegistered);
    AddressSpace::instance().add_host(AllocationKind::registered_host, pointer, bytes, "cudaHostRegister");
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return api("cudaHostUnregister", [&] {
    Allocation* const allocation = AddressSpace::instance().starting_at(address_of(pointer));
    require(allocation && allocation->kind == AllocationKind::registered_host,
            cudaErrorHostMemoryNotRegistered);
    settle();
    AddressSpace::instance().free(*allocation);
  });
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* pointer, unsigned) {
  return api("cudaHostGetDevicePointer", [&] {
    require(device_pointer && locate(pointer).side == Side::pinned);
    *device_pointer = pointer;
  });
}

cudaError_t cudaHostGetFlags(unsigned* flags, void* pointer) {
  return api("cudaHostGetFlags", [&] {
    require(flags);
    const Allocation* const allocation = AddressSpace::instance().find(address_of(pointer));
    require(allocation && allocation->kind == AllocationKind::pinned_host);
    const std::lock_guard lock(pinned_flags().mutex);
    *flags = pinned_flags().by_address[allocation->begin] | cudaHostAllocMapped;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return api("cudaMemGetInfo", [&] {
    std::uint64_t free_now = 0, total = 0;
    AddressSpace::instance().usage(current_device(), free_now, total);
    if (free_bytes) *free_bytes = free_now;
    if (total_bytes) *total_bytes = total;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return api("cudaPointerGetAttributes", [&] {
    require(attributes);
    *attributes = {};
    const Location place = locate(pointer);
    void* const plain = const_cast<void*>(pointer);
    attributes->device = place.device;
    switch (place.side) {
      case Side::pageable:
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = cudaInvalidDeviceId;
        attributes->hostPointer = plain;
        break;
      case Side::pinned:
        attributes->type = cudaMemoryTypeHost;
        attributes->devicePointer = attributes->hostPointer = plain;
        break;
      case Side::managed:
        attributes->type = cudaMemoryTypeManaged;
        attributes->devicePointer = attributes->hostPointer = plain;
        break;
      case Side::device:
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = plain;
        break;
    }
  });
}

// Copies.

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return api("cudaMemcpy",
             [&] { copy(stream_of(nullptr), linear(to), linear(from), {bytes}, kind, true, "cudaMemcpy"); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return api("cudaMemcpyAsync", [&] {
    copy(stream_of(stream), linear(to), linear(from), {bytes}, kind, false, "cudaMemcpyAsync");
  });
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, std::size_t bytes) {
  return api("cudaMemcpyPeer", [&] {
    for (const int device : {to_device, from_device}) {
      require(device >= 0 && device < device_count(), cudaErrorInvalidDevice);
      Scheduler::instance().wait_device(device);
    }
    // Serialised with all work of both devices, earlier and later.
    Stream& stream = stream_of(nullptr);
    copy(stream, linear(to), linear(from), {bytes}, cudaMemcpyDeviceToDevice, true, "cudaMemcpyPeer");
    Scheduler::instance().wait_stream(stream);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  return api("cudaMemcpyPeerAsync", [&] {
    copy(stream_of(stream), linear(to), linear(from), {bytes}, cudaMemcpyDeviceToDevice, false,
         "cudaMemcpyPeerAsync");
  });
}

cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t height, cudaMemcpyKind kind) {
  return api("cudaMemcpy2D", [&] {
    copy(stream_of(nullptr), {address_of(to), to_pitch}, {address_of(from), from_pitch}, {width, height},
         kind, true, "cudaMemcpy2D");
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return api("cudaMemcpy2DAsync", [&] {
    copy(stream_of(stream), {address_of(to), to_pitch}, {address_of(from), from_pitch}, {width, height}, kind,
         false, "cudaMemcpy2DAsync");
  });
}

cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
  return api("cudaMemcpy3D", [&] { copy_3d(p, stream_of(nullptr), true, "cudaMemcpy3D"); });
}

cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  return api("cudaMemcpy3DAsync", [&] { copy_3d(p, stream_of(stream), false, "cudaMemcpy3DAsync"); });
}

cudaError_t cudaMemcpy3DPeer(const cudaMemcpy3DPeerParms* p) {
  return api("cudaMemcpy3DPeer", [&] { copy_3d_peer(p, stream_of(nullptr), true, "cudaMemcpy3DPeer"); });
}

cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms* p, cudaStream_t stream) {
  return api("cudaMemcpy3DPeerAsync",
             [&] { copy_3d_peer(p, stream_of(stream), false, "cudaMemcpy3DPeerAsync"); });
}

// Variables.

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t bytes, std::size_t offset,
                               cudaMemcpyKind kind) {
  return api("cudaMemcpyToSymbol", [&] {
    copy(stream_of(nullptr), symbol_region(symbol, offset, bytes), linear(from), {bytes}, kind, true,
         "cudaMemcpyToSymbol");
  });
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, std::size_t bytes,
                                    std::size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  return api("cudaMemcpyToSymbolAsync", [&] {
    copy(stream_of(stream), symbol_region(symbol, offset, bytes), linear(from), {bytes}, kind, false,
         "cudaMemcpyToSymbolAsync");
  });
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, std::size_t bytes, std::size_t offset,
                                 cudaMemcpyKind kind) {
  return api("cudaMemcpyFromSymbol", [&] {
    copy(stream_of(nullptr), linear(to), symbol_region(symbol, offset, bytes), {bytes}, kind, true,
         "cudaMemcpyFromSymbol");
  });
}

cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, std::size_t bytes, std::size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
  return api("cudaMemcpyFromSymbolAsync", [&] {
    copy(stream_of(stream), linear(to), symbol_region(symbol, offset, bytes), {bytes}, kind, false,
         "cudaMemcpyFromSymbolAsync");
  });
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return api("cudaGetSymbolAddress", [&] {
    require(pointer);
    *pointer = reinterpret_cast<void*>(symbol_memory(symbol).begin);
  });
}

cudaError_t cudaGetSymbolSize(std::size_t* bytes, const void* symbol) {
  return api("cudaGetSymbolSize", [&] {
    require(bytes);
    *bytes = symbol_memory(symbol).bytes;
  });
}

// Fills.

cudaError_t cudaMemset(void* pointer, int value, std::size_t bytes) {
  return api("cudaMemset",
             [&] { fill_and_settle(stream_of(nullptr), linear(pointer), {bytes}, value, "cudaMemset"); });
}

cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  return api("cudaMemsetAsync", [&] {
    fill(stream_of(stream), linear(pointer), {bytes}, static_cast<std::uint32_t>(value) & 0xff, 1,
         "cudaMemsetAsync");
  });
}

cudaError_t cudaMemset2D(void* pointer, std::size_t pitch, int value, std::size_t width, std::size_t height) {
  return api("cudaMemset2D", [&] {
    fill_and_settle(stream_of(nullptr), {address_of(pointer), pitch}, {width, height}, value, "cudaMemset2D");
  });
}

cudaError_t cudaMemset2DAsync(void* pointer, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
  return api("cudaMemset2DAsync", [&] {
    fill(stream_of(stream), {address_of(pointer), pitch}, {width, height},
         static_cast<std::uint32_t>(value) & 0xff, 1, "cudaMemset2DAsync");
  });
}

cudaError_t cudaMemset3D(cudaPitchedPtr p, int value, cudaExtent e) {
  return api("cudaMemset3D", [&] {
    fill_and_settle(stream_of(nullptr), {address_of(p.ptr), p.pitch, p.pitch * p.ysize},
                    {e.width, e.height, e.depth}, value, "cudaMemset3D");
  });
}

cudaError_t cudaMemset3DAsync(cudaPitchedPtr p, int value, cudaExtent e, cudaStream_t stream) {
  return api("cudaMemset3DAsync", [&] {
    fill(stream_of(stream), {address_of(p.ptr), p.pitch, p.pitch * p.ysize}, {e.width, e.height, e.depth},
         static_cast<std::uint32_t>(value) & 0xff, 1, "cudaMemset3DAsync");
  });
}

// Batches: copies without an order among themselves, run one after the other here.

cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const std::size_t* bytes,
                                 std::size_t count, cudaMemcpyAttributes*, std::size_t*, std::size_t,
                                 cudaStream_t stream) {
  return api("cudaMemcpyBatchAsync", [&] {
    require(to && from && bytes && stream);
    for (std::size_t i = 0; i < count; ++i) {
      copy(stream_of(stream), linear(to[i]), linear(from[i]), {bytes[i]}, cudaMemcpyDefault, false,
           "cudaMemcpyBatchAsync");
    }
  });
}
}
