#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "checks/report.h"
#include "machine/launch.h"
#include "memory/address_space.h"
#include "runtime/api.h"
#include "runtime/capture.h"
#include "runtime/copy.h"
#include "runtime/graph.h"
#include "runtime/pool.h"

/// Stream-ordered memory. Every allocation gets an address of its own, and freed addresses rest as long as the device has room: a use
/// after the free, or one that no event orders before the free, is found wherever the memory would have gone.
namespace emulator {
namespace {

struct Pool {
  int device = 0;
  bool is_default = false;
  std::uint64_t used = 0, used_high = 0;
  std::uint64_t held = 0;  ///< what a pool that never gives memory back would hold
  std::uint64_t release_threshold = 0;
  int follow_events = 1, opportunistic = 1, internal_dependencies = 1;
};

struct Pools {
  std::mutex mutex;
  std::vector<Pool*> defaults, current;
  std::set<Pool*> live;
  std::map<std::uint64_t, Pool*> owner;  ///< by address
  std::set<std::uint64_t> freeing;       ///< addresses whose free waits in a stream
  Pools() {
    for (int device = 0; device < device_count(); ++device) {
      Pool* const pool = new Pool;
      pool->device = device;
      pool->is_default = true;
      defaults.push_back(pool);
      live.insert(pool);
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
};

class FreeWork : public Work {
 public:
  FreeWork(Allocation& allocation, Pool* pool) : allocation_(allocation), pool_(pool) {}
  int run(OperationId operation) override {
    allocation_.freed = operation;
    if (checks_enabled()) check_uses(operation);
    {
      const std::lock_guard lock(pools().mutex);
      pools().owner.erase(allocation_.begin);
      pools().freeing.erase(allocation_.begin);
      pool_->used -= allocation_.bytes;
    }
    AddressSpace::instance().free(allocation_);
    return 0;
  }
  std::string name() const override { return "cudaFreeAsync"; }

 private:
  /// Work of other streams must be over by the order of the program, not by chance.
  void check_uses(OperationId operation) {
    const OperationOrder& order = OperationOrder::instance();
    const std::lock_guard lock(allocation_.touched_mutex);
    for (const auto& [stream, last] : allocation_.touched) {
      if (order.before(last, operation)) continue;
      report(Severity::error, "free-before-use-ends",
             order.describe(operation) + " frees allocation " + std::to_string(allocation_.number) + " (" +
                 allocation_.label + ", " + std::to_string(allocation_.bytes) + " bytes), which " +
                 order.describe(last) + " uses without an order between them");
    }
  }

  Allocation& allocation_;
  Pool* pool_;
};

void* allocate(std::size_t bytes, Pool& pool, Stream& stream) {
  if (bytes == 0) return nullptr;
  if (capturing(stream)) {
    GraphNode& node = add_alloc_node(captured_graph(stream), captured_tips(stream), bytes);
    follow(stream, node);
    return node.memory->params.dptr;
  }
  AddressSpace& space = AddressSpace::instance();
  Allocation* allocation =
      space.allocate(AllocationKind::stream_ordered, pool.device, bytes, "cudaMallocAsync");
  if (!allocation) {  // frees that are under way may make room
    Scheduler::instance().wait_device(pool.device, false);
    allocation = space.allocate(AllocationKind::stream_ordered, pool.device, bytes, "cudaMallocAsync");
  }
  require(allocation, cudaErrorMemoryAllocation);
  allocation->allocated = submit(stream, std::make_shared<AllocateWork>())->id;
  const std::lock_guard lock(pools().mutex);
  pools().owner[allocation->begin] = &pool;
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
      (allocation->kind != AllocationKind::stream_ordered && allocation->kind != AllocationKind::device)) {
    report(Severity::error, "invalid-free",
           "cudaFreeAsync of a pointer that no device allocation begins at: " + space.describe(address));
    throw ApiError{cudaErrorInvalidValue};
  }
  Pool* pool = nullptr;
  {
    const std::lock_guard lock(pools().mutex);
    if (!pools().freeing.insert(address).second) {
      report(Severity::error, "invalid-free",
             "cudaFreeAsync of memory that is freed already: " + space.describe(address));
      throw ApiError{cudaErrorInvalidValue};
    }
    const auto owner = pools().owner.find(address);
    pool = owner == pools().owner.end() ? pools().defaults[static_cast<std::size_t>(allocation->device)]
                                        : owner->second;
    if (owner == pools().owner.end())
      pool->used += allocation->bytes;  // of cudaMalloc: the work takes the bytes off again
  }
  submit(stream, std::make_shared<FreeWork>(*allocation, pool));
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
    require(pointer);
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
    pools().current[static_cast<std::size_t>(device)] = &pool;
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* handle, const cudaMemPoolProps* props) {
  return api("cudaMemPoolCreate", [&] {
    require(handle && props && props->allocType == cudaMemAllocationTypePinned);
    require(props->location.type == cudaMemLocationTypeDevice, cudaErrorNotSupported);
    check_device(props->location.id);
    Pool* const pool = new Pool;
    pool->device = props->location.id;
    const std::lock_guard lock(pools().mutex);
    pools().live.insert(pool);
    *handle = handle_of(pool);
  });
}

// The object stays: allocations of a destroyed pool may be freed later.
cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  return api("cudaMemPoolDestroy", [&] {
    Pool& pool = pool_of(handle);
    require(!pool.is_default);
    const std::lock_guard lock(pools().mutex);
    pools().live.erase(&pool);
    Pool*& current = pools().current[static_cast<std::size_t>(pool.device)];
    if (current == &pool) current = pools().defaults[static_cast<std::size_t>(pool.device)];
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
    pool_of(pool);
    require(list || count == 0);
  });
}

cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool, cudaMemLocation*) {
  return api("cudaMemPoolGetAccess", [&] {
    pool_of(pool);
    require(flags);
    *flags = cudaMemAccessFlagsProtReadWrite;
  });
}

cudaError_t cudaDeviceGraphMemTrim(int device) {
  return api("cudaDeviceGraphMemTrim", [&] { check_device(device); });
}
}
