#include <array>

#include "instructions/async_copy.h"
#include "instructions/decode.h"
#include "instructions/mbarrier.h"
#include "instructions/memory_unit.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "machine/watch.h"

// Bulk copies between global and shared memory, without tensors (PTX ISA 9.7.9.25.5.2 cp.async.bulk). A copy is performed when it is
// issued; who reads shared memory without having waited for the copy's barrier object is found by the check for races.
namespace emulator {
namespace {

constexpr std::uint32_t chunk_bytes = 16;  // the unit of a bulk copy's addresses and size

/// One address operand. Instruction.displacement holds what Warp::addresses adds to each of them.
struct Place {
  int operand = 0;
  std::uint32_t register_bytes = 8;
  std::int64_t displacement = 0;
};

/// Owned by the function for as long as its code lives.
struct BulkCopy {
  Place destination, source, barrier;
  bool to_shared = false;
};

const BulkCopy& copy_of(const Instruction& i) { return *static_cast<const BulkCopy*>(i.extra); }

std::array<std::uint64_t, warp_size> addresses(Warp& warp, const Instruction& i, const Place& place,
                                               LaneMask lanes) {
  std::array<std::uint64_t, warp_size> out{};
  warp.addresses(i, place.operand, place.register_bytes, lanes, out);
  for_lanes(lanes, [&](int lane) {
    std::uint64_t& address = out[static_cast<std::size_t>(lane)];
    address += static_cast<std::uint64_t>(place.displacement - i.displacement);
    if (place.register_bytes == 4) address = static_cast<std::uint32_t>(address);
  });
  return out;
}

/// The host's place of 16 bytes of one lane, judged and counted as an access of the lane.
struct Chunk : MemoryAccess {
  Chunk(Warp& warp, const Instruction& i, int lane, AccessKind kind, std::uint64_t address, ptx::Space space)
      : MemoryAccess(kind, i, LaneMask{1} << lane) {
    access.bytes = chunk_bytes;
    access.async_proxy = true;
    access.carries = kind == AccessKind::load;
    access.address[static_cast<std::size_t>(lane)] = address;
    open(warp, i, space);
  }
};

void execute_bulk_copy(Warp& warp, const Instruction& i, LaneMask lanes) {
  const BulkCopy& copy = copy_of(i);
  const auto destination = addresses(warp, i, copy.destination, lanes),
             source = addresses(warp, i, copy.source, lanes);
  const std::uint32_t* bytes = warp.source<std::uint32_t>(i, 2);
  constexpr ptx::Space global = ptx::Space::global, shared = ptx::Space::shared;
  for_lanes(lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    if (bytes[lane] % chunk_bytes) {
      report(Severity::error, "copy-size",
             "cp.async.bulk of " + std::to_string(bytes[lane]) + " bytes, not a multiple of 16",
             {&warp, lane, &i});
      throw KernelFault{715};
    }
    for (std::uint32_t at = 0; at < bytes[lane]; at += chunk_bytes) {
      Chunk from(warp, i, lane, AccessKind::load, source[l] + at, copy.to_shared ? global : shared);
      std::array<std::byte, chunk_bytes> value;
      load_16(from.host[l], value.data());
      from.close(warp, i);
      Chunk to(warp, i, lane, AccessKind::store, destination[l] + at, copy.to_shared ? shared : global);
      store_16(to.host[l], value.data());
      if (from.unwritten) watch::copy_carries(warp, i, lane, from, to);
      to.close(warp, i);
    }
    if (copy.to_shared)
      complete_transaction(
          warp, i, lane, static_cast<std::uint32_t>(addresses(warp, i, copy.barrier, lanes)[l]), bytes[lane]);
  });
}

void execute_nothing(Warp&, const Instruction&, LaneMask) {}

Place take_place(Form& form, std::size_t operand, int slot) {
  form.address(operand);
  return {slot, form.address_bytes(), form.instruction().displacement};
}

}  // namespace

Execute decode_bulk_copy(Form& form) {
  // Copies are complete at once, so their groups have nothing to wait for.
  if (form.take("commit_group")) return execute_nothing;
  if (form.take("wait_group")) {
    form.take("read");
    form.literal(0);
    return execute_nothing;
  }
  BulkCopy copy;
  const bool to_shared = form.take("mbarrier::complete_tx::bytes");
  if (!to_shared && !form.take("bulk_group")) form.unknown("want mbarrier::complete_tx::bytes or bulk_group");
  if (!form.take("global") || form.take_one_of({"shared::cluster", "shared::cta"}).empty())
    form.unknown("want .global and .shared");
  const bool policy = form.take("L2::cache_hint");
  copy.to_shared = to_shared;
  copy.destination = take_place(form, 0, 0);
  copy.source = take_place(form, 1, 1);
  form.source(2, ptx::Type::u32);
  if (to_shared) copy.barrier = take_place(form, 3, 3);
  if (policy) form.ignore(to_shared ? 4 : 3);
  static_cast<StatementForm&>(form).keep(std::make_shared<BulkCopy>(copy));
  return execute_bulk_copy;
}

}  // namespace emulator
