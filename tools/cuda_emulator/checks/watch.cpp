#include "machine/watch.h"

#include <bit>

#include "checks/global_shadow.h"
#include "checks/state.h"
#include "checks/undefined.h"
#include "instructions/memory_unit.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "memory/address_space.h"

// What the checks do with what they are told (machine/watch.h).
namespace emulator {
namespace {

SharedShadow& shared_of(Warp& warp) { return warp.block().checks().shared; }

/// Bulk copies (one lane each) are judged by what was written without a fence, others are such writes.
void note_proxy(Warp& warp, const Instruction& i, const Access& access, ptx::Space space) {
  AsyncProxy* const proxy = warp.block().checks().async_proxy.get();
  if (!proxy) [[likely]]
    return;
  const int lane = std::countr_zero(access.lanes);
  const std::uint64_t address = access.address[static_cast<std::size_t>(lane)];
  if (!access.async_proxy) {
    if (access.kind != AccessKind::load) proxy->written(warp, i, access, space);
  } else if (access.kind == AccessKind::load) {
    proxy->copied_from(warp, i, lane, space, address, access.bytes);
  } else {
    proxy->copied_to(space, address, access.bytes);
  }
}

}  // namespace

void DeleteWatched::operator()(LaunchChecks* checks) const { delete checks; }
void DeleteWatched::operator()(BlockChecks* checks) const { delete checks; }
void DeleteWatched::operator()(UndefinedValues* values) const { delete values; }

namespace watch {

Watched<LaunchChecks> launch_begins(const Launch& launch) {
  return Watched<LaunchChecks>(new LaunchChecks(launch.blocks()));
}

Watched<BlockChecks> block_begins(const Block& block) {
  const bool proxy = block.launch().kernel().uses_async_proxy && checks_enabled();
  return Watched<BlockChecks>(new BlockChecks{
      {block.shared_bytes(), block.thread_count()}, proxy ? std::make_unique<AsyncProxy>() : nullptr, {}});
}

void lanes_exit(Warp& warp, LaneMask lanes) {
  if (UndefinedValues* const values = warp.undefined()) values->exit(lanes);
  shared_of(warp).exited(warp.index(), lanes);
}

void barrier_arrival(Warp& warp, std::uint32_t barrier) { shared_of(warp).arrive(barrier, warp.index()); }

void barrier_complete(Block& block, std::uint32_t barrier, std::uint32_t waiting, bool all) {
  block.checks().shared.complete(barrier, waiting, all);
  if (all) block_barrier_global(block);
}

void warp_sync(Warp& warp, LaneMask lanes) { shared_of(warp).warp_sync(warp.index(), lanes); }

void fence(Warp& warp, LaneMask lanes, bool device) {
  shared_of(warp).fence(warp.index(), lanes);
  if (device && checks_enabled()) fence_global(warp, lanes);
}

void proxy_fence(Warp& warp, bool shared, bool global) {
  if (AsyncProxy* const proxy = warp.block().checks().async_proxy.get()) proxy->fence(shared, global);
}

void release(Warp& warp, int lane, std::uint32_t address) {
  shared_of(warp).release(warp.index(), lane, address);
}
void acquire(Warp& warp, int lane, std::uint32_t address) {
  shared_of(warp).acquire(warp.index(), lane, address);
}

bool global_access(Warp& warp, const Instruction& i, const Access& access) {
  const bool unwritten = checks_enabled() && check_global(warp, i, access);
  note_proxy(warp, i, access, ptx::Space::global);
  return unwritten;
}

bool shared_access(Warp& warp, const Instruction& i, const Access& access) {
  // The stores of cp.async come in copy_starts.
  const bool copies = access.copy && access.kind == AccessKind::store;
  const bool unwritten = !copies && shared_of(warp).access(warp, i, access);
  note_proxy(warp, i, access, ptx::Space::shared);
  return unwritten;
}

void global_access_done(Warp& warp, const Instruction& i, const Access& access) {
  if (checks_enabled()) synchronise_global(warp, i, access);
}

void copy_starts(Warp& warp, const Instruction& i, int lane, std::uint32_t address, std::uint32_t bytes) {
  shared_of(warp).copy_started(warp, i, lane, address, bytes);
}

void copy_lands(Warp& warp, const AsyncCopy& copy) {
  shared_of(warp).copy_landed(warp, *copy.instruction, copy.lane, copy.shared, copy.bytes);
  shared_of(warp).forget_written(copy.shared, copy.unwritten);
}

/// Bytes that were never written stay so; global memory may take them as padding beside others.
void copy_carries(Warp& warp, const Instruction& i, int lane, const MemoryAccess& from,
                  const MemoryAccess& to) {
  const auto l = static_cast<std::size_t>(lane);
  const std::uint64_t source = from.access.address[l], destination = to.access.address[l];
  const std::uint32_t bytes = from.access.bytes;
  AddressSpace& space = AddressSpace::instance();
  if (to.shared)
    return shared_of(warp).forget_written(static_cast<std::uint32_t>(destination),
                                          space.uninitialised(source, bytes));
  const std::uint32_t unwritten = shared_of(warp).unwritten(static_cast<std::uint32_t>(source), bytes);
  if (unwritten == low_bits(bytes))
    return UndefinedValues::report_use(warp, i, lane,
                                       {&i, source, static_cast<std::int8_t>(lane), ptx::Space::shared});
  for (std::uint32_t k = 0; k < bytes; ++k)
    if (unwritten >> k & 1) space.mark_uninitialised(destination + k, 1);
}

Watched<UndefinedValues> no_undefined_values() { return Watched<UndefinedValues>(new UndefinedValues); }

bool execute(Warp& warp, const Instruction& i, LaneMask lanes) {
  UndefinedValues& values = *warp.undefined();
  values.execute(warp, i, lanes);
  return !values.empty();
}

void lanes_return(Warp& warp, const Frame& frame, LaneMask lanes) { warp.undefined()->leave(frame, lanes); }

void loaded(Warp& warp, const Instruction& i, const MemoryAccess& m, bool sign,
            std::uint32_t register_bytes) {
  warp.track_undefined().load(warp, i, m, sign, register_bytes);
}

void stored(Warp& warp, const Instruction& i, const MemoryAccess& m) { warp.undefined()->store(warp, i, m); }

void shuffled(Warp& warp, std::span<const Participant> participants, int to, int from,
              const std::array<std::uint8_t, warp_size>& sources, LaneMask invalid) {
  warp.undefined()->shuffle(participants, to, from, sources, invalid);
}

void local_used(Warp& warp, const Instruction& i, int lane, std::uint32_t offset, std::uint32_t bytes) {
  UndefinedValues::use_local(warp, i, lane, offset, bytes);
}

}  // namespace watch
}  // namespace emulator
