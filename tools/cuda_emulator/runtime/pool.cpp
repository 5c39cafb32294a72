#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>

#include "checks/global_shadow.h"
#include "machine/launch.h"
#include "machine/random.h"
#include "machine/report.h"
#include "memory/address_space.h"
#include "runtime/api.h"
#include "runtime/capture.h"
#include "runtime/copy.h"
#include "runtime/graph.h"
#include "runtime/ipc.h"
#include "runtime/pool.h"

/// Stream-ordered memory. Most allocations get an address of their own, and freed addresses rest as long as the device has room: a use
/// after the free, or one that no event orders before the free, is found wherever the memory would have gone. By chance an allocation
/// gets an address back whose free comes before it, as pools do: programs must not take an address for a name.
namespace emulator {
namespace {

/// A destroyed pool lives until its last allocation is freed.
struct Pool : std::enable_shared_from_this<Pool> {
  int device = 0;
  bool is_default = false;
  bool shareable = false;      ///< made for export to other processes
  int process = 0;             ///< of an imported pool: the one that made it; 0: this one
  std::uint64_t imported = 0;  ///< of an imported pool: its number in that process
  std::uint64_t used = 0, used_high = 0;
  std::uint64_t held = 0;  ///< what a pool that never gives memory back would hold
  std::uint64_t release_threshold = 0;
  struct Freed {
    std::uint64_t begin, bytes;
    OperationId free;
  };
  std::deque<Freed> freed;   ///< the last ones
  std::uint64_t guests = 0;  ///< other devices that may use its memory, a bit each
  int follow_events = 1, opportunistic = 1, internal_dependencies = 1;
};

struct Pools {
  std::mutex mutex;
  std::vector<Pool*> defaults, current;
  std::map<Pool*, std::shared_ptr<Pool>> live;
  std::map<std::uint64_t, std::shared_ptr<Pool>> owner;  ///< by address
  std::set<std::uint64_t> freeing;                       ///< addresses whose free waits in a stream
  std::uint64_t random = base_seed();
  Pools() {
    for (int device = 0; device < device_count(); ++device) {
      const auto pool = std::make_shared<Pool>();
      pool->device = device;
      pool->is_default = true;
      defaults.push_back(pool.get());
      live.emplace(pool.get(), pool);
    }
    current = defaults;
  }
};
Pools& pools() {
  static Pools* const instance = new Pools;
  return *instance;
}

Pool& pool_of(cudaMemPool_t handle) {
  Pool* const pool = reinterpret_cast<Pool*>(handle);
  const std::lock_guard lock(pools().mutex);
  require(pools().live.contains(pool));
  return *pool;
}
cudaMemPool_t handle_of(Pool* pool) { return reinterpret_cast<cudaMemPool_t>(pool); }

void check_device(int device) { require(device >= 0 && device < device_count(), cudaErrorInvalidDevice); }

/// Stands for the allocation in the order of operations: work that is not behind it must not use the memory.
class AllocateWork : public Work {
 public:
  int run(OperationId) override { return 0; }
  std::string name() const override { return "cudaMallocAsync"; }
  timeline::HostStep::Kind call() const override { return timeline::HostStep::Kind::memory; }
  timeline::Load::Kind load() const override { return timeline::Load::Kind::point; }
};

class FreeWork : public Work {
 public:
  FreeWork(Allocation& allocation, std::shared_ptr<Pool> pool)
      : allocation_(allocation), pool_(std::move(pool)) {}
  int run(OperationId operation) override {
    allocation_.freed = operation;
    if (checks_enabled()) check_free(allocation_, operation);
    {
      const std::lock_guard lock(pools().mutex);
      pools().owner.erase(allocation_.begin);
      pools().freeing.erase(allocation_.begin);
      pool_->used -= allocation_.bytes;
    }
    const Pool::Freed freed{allocation_.begin, allocation_.bytes, operation};
    const bool pooled = allocation_.kind == AllocationKind::stream_ordered;
    AddressSpace::instance().free(allocation_);
    if (pooled) remember(freed);
    return 0;
  }
  std::string name() const override { return "cudaFreeAsync"; }
  timeline::HostStep::Kind call() const override { return timeline::HostStep::Kind::memory; }
  timeline::Load::Kind load() const override { return timeline::Load::Kind::point; }

 private:
  void remember(const Pool::Freed& freed) {
    constexpr std::size_t remembered = 64;
    const std::lock_guard lock(pools().mutex);
    pool_->freed.push_back(freed);
    if (pool_->freed.size() > remembered) pool_->freed.pop_front();
  }

  Allocation& allocation_;
  std::shared_ptr<Pool> pool_;
};

/// By chance: freed memory of the same size whose free comes before the operation that allocates, in its own stream or by events.
/// nullptr: none.
Allocation* allocate_again(std::size_t bytes, Pool& pool, OperationId operation) {
  const OperationOrder& order = OperationOrder::instance();
  const std::lock_guard lock(pools().mutex);
  if (next_random(pools().random) % 2) return nullptr;
  const auto fits = [&](const Pool::Freed& f) {
    return f.bytes == bytes && order.before(f.free, operation) &&
           (pool.follow_events || order.stream_of(f.free) == order.stream_of(operation));
  };
  const auto found = std::ranges::find_if(pool.freed, fits);
  if (found == pool.freed.end()) return nullptr;
  const std::uint64_t begin = found->begin;
  pool.freed.erase(found);
  return AddressSpace::instance().allocate(AllocationKind::stream_ordered, pool.device, bytes,
                                           "cudaMallocAsync", begin);
}

void* allocate(std::size_t bytes, Pool& pool, Stream& stream) {
  if (bytes == 0) return nullptr;
  if (capturing(stream)) {
    GraphNode& node =
        add_alloc_node(captured_graph(stream), captured_tips(stream), bytes, pool.device, pool.guests);
    follow(stream, node);
    return node.memory->params.dptr;
  }
  AddressSpace& space = AddressSpace::instance();
  const OperationId operation = submit(stream, std::make_shared<AllocateWork>())->id;
  Allocation* allocation = allocate_again(bytes, pool, operation);
  if (!allocation)
    allocation = space.allocate(AllocationKind::stream_ordered, pool.device, bytes, "cudaMallocAsync");
  if (!allocation) {  // frees that are under way may make room
    Scheduler::instance().wait_device(pool.device, false);
    allocation = space.allocate(AllocationKind::stream_ordered, pool.device, bytes, "cudaMallocAsync");
  }
  require(allocation, cudaErrorMemoryAllocation);
  allocation->allocated = operation;
  const std::lock_guard lock(pools().mutex);
  allocation->guests = pool.guests;
  pools().owner[allocation->begin] = pool.shared_from_this();
  pool.used += bytes;
  pool.used_high = std::max(pool.used_high, pool.used);
  pool.held = std::max(pool.held, pool.used);
  return reinterpret_cast<void*>(allocation->begin);
}

void free_async(void* pointer, Stream& stream) {
  if (!pointer) return;
  if (capturing(stream)) {
    follow(stream, add_free_node(captured_graph(stream), captured_tips(stream), pointer));
    return;
  }
  if (free_graph_memory(pointer)) return;
  AddressSpace& space = AddressSpace::instance();
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  Allocation* const allocation = space.starting_at(address);
  if (!allocation ||
      (allocation->kind != AllocationKind::stream_ordered && allocation->kind != AllocationKind::device &&
       allocation->kind != AllocationKind::imported) ||
      opened_by_handle(address)) {
    report(Severity::error, "invalid-free",
           "cudaFreeAsync of a pointer that no device allocation begins at: " + space.describe(address));
    throw ApiError{cudaErrorInvalidValue};
  }
  std::shared_ptr<Pool> pool;
  {
    const std::lock_guard lock(pools().mutex);
    if (!pools().freeing.insert(address).second) {
      report(Severity::error, "invalid-free",
             "cudaFreeAsync of memory that is freed already: " + space.describe(address));
      throw ApiError{cudaErrorInvalidValue};
    }
    const auto owner = pools().owner.find(address);
    if (owner != pools().owner.end()) {
      pool = owner->second;
    } else {
      pool = pools().defaults[static_cast<std::size_t>(allocation->device)]->shared_from_this();
      pool->used += allocation->bytes;  // of cudaMalloc: the work takes the bytes off again
    }
  }
  submit(stream, std::make_shared<FreeWork>(*allocation, std::move(pool)));
}

}  // namespace

void forget_pooled(const Allocation& allocation) {
  const std::lock_guard lock(pools().mutex);
  const auto owner = pools().owner.find(allocation.begin);
  if (owner == pools().owner.end()) return;
  owner->second->used -= allocation.bytes;
  pools().owner.erase(owner);
}

namespace {

std::size_t pool_device(const cudaMemLocation* place, cudaMemAllocationType type) {
  require(place);
  require(type == cudaMemAllocationTypePinned && place->type == cudaMemLocationTypeDevice,
          cudaErrorNotSupported);
  check_device(place->id);
  return static_cast<std::size_t>(place->id);
}

std::uint64_t reserved(const Pool& pool) {
  return std::max(pool.used, std::min(pool.held, pool.release_threshold));
}

}  // namespace
}  // namespace emulator

using namespace emulator;

extern "C" {

cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t handle) {
  return api("cudaMallocAsync", [&] {
    require(pointer);
    Stream& stream = stream_of(handle);
    *pointer = allocate(bytes, *pools().current[static_cast<std::size_t>(stream.device)], stream);
  });
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return api("cudaMallocFromPoolAsync", [&] {
    require(pointer && pool_of(pool).process == 0);
    *pointer = allocate(bytes, pool_of(pool), stream_of(stream));
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return api("cudaFreeAsync", [&] { free_async(pointer, stream_of(stream)); });
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return api("cudaDeviceGetDefaultMemPool", [&] {
    require(pool);
    check_device(device);
    *pool = handle_of(pools().defaults[static_cast<std::size_t>(device)]);
  });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return api("cudaDeviceGetMemPool", [&] {
    require(pool);
    check_device(device);
    *pool = handle_of(pools().current[static_cast<std::size_t>(device)]);
  });
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t handle) {
  return api("cudaDeviceSetMemPool", [&] {
    check_device(device);
    Pool& pool = pool_of(handle);
    require(pool.device == device, cudaErrorInvalidDevice);
    require(pool.process == 0);
    pools().current[static_cast<std::size_t>(device)] = &pool;
  });
}

// The same for places of memory. Only devices have pools here.

cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t* pool, cudaMemLocation* place,
                                     cudaMemAllocationType type) {
  return api("cudaMemGetDefaultMemPool", [&] {
    require(pool);
    *pool = handle_of(pools().defaults[pool_device(place, type)]);
  });
}

cudaError_t cudaMemGetMemPool(cudaMemPool_t* pool, cudaMemLocation* place, cudaMemAllocationType type) {
  return api("cudaMemGetMemPool", [&] {
    require(pool);
    *pool = handle_of(pools().current[pool_device(place, type)]);
  });
}

cudaError_t cudaMemSetMemPool(cudaMemLocation* place, cudaMemAllocationType type, cudaMemPool_t pool) {
  std::size_t device = 0;
  const cudaError_t error = api("cudaMemSetMemPool", [&] { device = pool_device(place, type); });
  return error ? error : cudaDeviceSetMemPool(static_cast<int>(device), pool);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* handle, const cudaMemPoolProps* props) {
  return api("cudaMemPoolCreate", [&] {
    require(handle && props && props->allocType == cudaMemAllocationTypePinned);
    require(props->location.type == cudaMemLocationTypeDevice, cudaErrorNotSupported);
    check_device(props->location.id);
    const bool shareable = props->handleTypes == cudaMemHandleTypePosixFileDescriptor;
    require(shareable || props->handleTypes == cudaMemHandleTypeNone, cudaErrorNotSupported);
    const auto pool = std::make_shared<Pool>();
    pool->device = props->location.id;
    pool->shareable = shareable;
    const std::lock_guard lock(pools().mutex);
    pools().live.emplace(pool.get(), pool);
    *handle = handle_of(pool.get());
  });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  return api("cudaMemPoolDestroy", [&] {
    Pool& pool = pool_of(handle);
    require(!pool.is_default);
    const std::lock_guard lock(pools().mutex);
    Pool*& current = pools().current[static_cast<std::size_t>(pool.device)];
    if (current == &pool) current = pools().defaults[static_cast<std::size_t>(pool.device)];
    pools().live.erase(&pool);
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, std::size_t bytes_to_keep) {
  return api("cudaMemPoolTrimTo", [&] {
    Pool& pool = pool_of(handle);
    const std::lock_guard lock(pools().mutex);
    pool.held = std::max(pool.used, std::min<std::uint64_t>(pool.held, bytes_to_keep));
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr which, void* value) {
  return api("cudaMemPoolSetAttribute", [&] {
    require(value);
    Pool& pool = pool_of(handle);
    switch (which) {
      case cudaMemPoolReuseFollowEventDependencies:
        pool.follow_events = *static_cast<int*>(value);
        return;
      case cudaMemPoolReuseAllowOpportunistic:
        pool.opportunistic = *static_cast<int*>(value);
        return;
      case cudaMemPoolReuseAllowInternalDependencies:
        pool.internal_dependencies = *static_cast<int*>(value);
        return;
      case cudaMemPoolAttrReleaseThreshold:
        pool.release_threshold = *static_cast<std::uint64_t*>(value);
        return;
      case cudaMemPoolAttrReservedMemHigh:
      case cudaMemPoolAttrUsedMemHigh:
        require(*static_cast<std::uint64_t*>(value) == 0);
        pool.used_high = pool.used;
        return;
      default:
        throw ApiError{cudaErrorInvalidValue};
    }
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr which, void* value) {
  return api("cudaMemPoolGetAttribute", [&] {
    require(value);
    const Pool& pool = pool_of(handle);
    switch (which) {
      case cudaMemPoolReuseFollowEventDependencies:
        *static_cast<int*>(value) = pool.follow_events;
        return;
      case cudaMemPoolReuseAllowOpportunistic:
        *static_cast<int*>(value) = pool.opportunistic;
        return;
      case cudaMemPoolReuseAllowInternalDependencies:
        *static_cast<int*>(value) = pool.internal_dependencies;
        return;
      case cudaMemPoolAttrReleaseThreshold:
        *static_cast<std::uint64_t*>(value) = pool.release_threshold;
        return;
      case cudaMemPoolAttrReservedMemCurrent:
        *static_cast<std::uint64_t*>(value) = reserved(pool);
        return;
      case cudaMemPoolAttrReservedMemHigh:
      case cudaMemPoolAttrUsedMemHigh:
        *static_cast<std::uint64_t*>(value) = pool.used_high;
        return;
      case cudaMemPoolAttrUsedMemCurrent:
        *static_cast<std::uint64_t*>(value) = pool.used;
        return;
      default:
        throw ApiError{cudaErrorInvalidValue};
    }
  });
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* list, std::size_t count) {
  return api("cudaMemPoolSetAccess", [&] {
    Pool& changed = pool_of(pool);
    require(list || count == 0);
    for (const cudaMemAccessDesc& access : std::span(list, count)) {
      require(access.location.type == cudaMemLocationTypeDevice);
      check_device(access.location.id);
      // The pool's own device keeps its access.
      require(access.location.id != changed.device || access.flags == cudaMemAccessFlagsProtReadWrite);
    }
    const std::lock_guard lock(pools().mutex);
    for (const cudaMemAccessDesc& access : std::span(list, count)) {
      const std::uint64_t bit = std::uint64_t{1} << access.location.id;
      if (access.flags == cudaMemAccessFlagsProtReadWrite)
        changed.guests |= bit;
      else
        changed.guests &= ~bit;
    }
    for (const auto& [address, owner] : pools().owner)
      if (Allocation* const a =
              owner.get() == &changed ? AddressSpace::instance().starting_at(address) : nullptr)
        a->guests = changed.guests;
  });
}

cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t handle, cudaMemLocation* location) {
  return api("cudaMemPoolGetAccess", [&] {
    const Pool& pool = pool_of(handle);
    require(flags && location && location->type == cudaMemLocationTypeDevice);
    check_device(location->id);
    const bool may = location->id == pool.device || pool.guests >> location->id & 1;
    *flags = may ? cudaMemAccessFlagsProtReadWrite : cudaMemAccessFlagsProtNone;
  });
}

// Pools of several processes. The file behind a pool's handle says which pool it is; memory is shared allocation by allocation.

cudaError_t cudaMemPoolExportToShareableHandle(void* handle, cudaMemPool_t pool_handle,
                                               cudaMemAllocationHandleType type, unsigned flags) {
  return api("cudaMemPoolExportToShareableHandle", [&] {
    require(handle && type == cudaMemHandleTypePosixFileDescriptor && flags == 0);
    const Pool& pool = pool_of(pool_handle);
    require(pool.shareable);
    SharedHandle shared;
    shared.kind = SharedHandle::Kind::pool;
    shared.process = getpid();
    shared.device = pool.device;
    shared.pool = reinterpret_cast<std::uint64_t>(&pool);
    const int file = memfd_create("cuda_emulator pool", MFD_CLOEXEC);
    require(file >= 0, cudaErrorMemoryAllocation);
    if (::write(file, &shared, sizeof shared) != sizeof shared) {
      close(file);
      throw ApiError{cudaErrorMemoryAllocation};
    }
    *static_cast<int*>(handle) = file;
  });
}

cudaError_t cudaMemPoolImportFromShareableHandle(cudaMemPool_t* pool_handle, void* handle,
                                                 cudaMemAllocationHandleType type, unsigned flags) {
  return api("cudaMemPoolImportFromShareableHandle", [&] {
    require(pool_handle && type == cudaMemHandleTypePosixFileDescriptor && flags == 0);
    SharedHandle shared;
    const int file = static_cast<int>(reinterpret_cast<std::intptr_t>(handle));
    require(pread(file, &shared, sizeof shared, 0) == sizeof shared &&
            shared.kind == SharedHandle::Kind::pool);
    check_device(shared.device);
    const auto pool = std::make_shared<Pool>();
    pool->device = shared.device;
    pool->process = shared.process;
    pool->imported = shared.pool;
    const std::lock_guard lock(pools().mutex);
    pools().live.emplace(pool.get(), pool);
    *pool_handle = handle_of(pool.get());
  });
}

cudaError_t cudaMemPoolExportPointer(cudaMemPoolPtrExportData* data, void* pointer) {
  return api("cudaMemPoolExportPointer", [&] {
    require(data);
    Allocation* const allocation =
        AddressSpace::instance().starting_at(reinterpret_cast<std::uint64_t>(pointer));
    require(allocation);
    const Pool* pool = nullptr;
    {
      const std::lock_guard lock(pools().mutex);
      const auto owner = pools().owner.find(allocation->begin);
      require(owner != pools().owner.end());
      pool = owner->second.get();
    }
    require(pool->shareable);
    SharedHandle shared = export_memory(*allocation);
    shared.pool = reinterpret_cast<std::uint64_t>(pool);
    static_assert(sizeof shared <= sizeof *data);
    std::memset(data, 0, sizeof *data);
    std::memcpy(data, &shared, sizeof shared);
  });
}

cudaError_t cudaMemPoolImportPointer(void** pointer, cudaMemPool_t pool_handle,
                                     cudaMemPoolPtrExportData* data) {
  return api("cudaMemPoolImportPointer", [&] {
    require(pointer && data);
    Pool& pool = pool_of(pool_handle);
    SharedHandle shared;
    std::memcpy(static_cast<void*>(&shared), data, sizeof shared);
    require(pool.process != 0 && shared.kind == SharedHandle::Kind::memory &&
            shared.process == pool.process && shared.pool == pool.imported);
    const Allocation& allocation = import_memory(shared, "cudaMemPoolImportPointer");
    const std::lock_guard lock(pools().mutex);
    pools().owner[allocation.begin] = pool.shared_from_this();
    pool.used += allocation.bytes;
    *pointer = reinterpret_cast<void*>(allocation.begin);
  });
}

cudaError_t cudaDeviceGraphMemTrim(int device) {
  return api("cudaDeviceGraphMemTrim", [&] { check_device(device); });
}
}
