#include "instructions/async_copy.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "instructions/decoders.h"
#include "instructions/form.h"
#include "instructions/mbarrier.h"
#include "instructions/memory_unit.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "machine/watch.h"
#include "memory/address_space.h"

// Asynchronous copies from global to shared memory (PTX ISA 9.7.9.25.3 cp.async and its groups).
//
// A copy is judged when it is issued and performed as late as the program allows: when its thread waits for its group, or
// ends. A program that reads too early then reads what was there before, and the checks see it too.
namespace emulator {
namespace {

// Operands of a copy: destination, source, then the source's size (copy_source_size) or the predicate (copy_ignores).
constexpr int destination_operand = 0, source_operand = 1, option_operand = 2;

enum class CopyOption : std::uint8_t { none, source_size, ignore, ignore_unless };

/// Instruction.detail of a copy.
struct CopyDetail {
  std::int32_t destination_displacement;
  std::uint8_t bytes;
  std::uint8_t destination_register, source_register;  ///< bytes of the address registers
  CopyOption option;
};
static_assert(sizeof(CopyDetail) == sizeof(std::uint64_t));

void land(Warp& warp, const AsyncCopy& copy) {
  std::array<std::byte, 16> value{};
  if (copy.source) {
    std::array<std::byte, 16> source{};
    for (std::uint32_t k = 0; k < copy.source_bytes; ++k)
      source[k] = load_relaxed<std::byte>(copy.source + k);
    if (checks_enabled() && std::memcmp(source.data(), copy.seen.data(), copy.source_bytes) != 0)
      report(Severity::error, "copy-source-changed",
             "the source of a cp.async was written before the thread waited for the copy",
             {&warp, copy.lane, copy.instruction});
    std::memcpy(value.data(), source.data(), copy.source_bytes);
  }
  std::memcpy(warp.block().shared() + copy.shared, value.data(), copy.bytes);
  watch::copy_lands(warp, copy);
}

/// Lands the copies of the lanes for which `due(copy)` holds, in order of issue.
template <class Due>
void land_due(Warp& warp, LaneMask lanes, Due due) {
  auto& pending = warp.copies.pending;
  std::erase_if(pending, [&](const AsyncCopy& copy) {
    if (!(lanes >> copy.lane & 1) || !due(copy)) return false;
    land(warp, copy);
    return true;
  });
}

void execute_copy(Warp& warp, const Instruction& i, LaneMask lanes) {
  const auto detail = std::bit_cast<CopyDetail>(i.detail);
  MemoryAccess destination(AccessKind::store, i, lanes);
  destination.access.bytes = detail.bytes;
  destination.access.copy = true;
  warp.addresses(i, destination_operand, detail.destination_register, lanes, destination.access.address);
  for_lanes(lanes, [&](int lane) {
    // Warp::addresses has added the source's displacement.
    std::uint64_t& address = destination.access.address[static_cast<std::size_t>(lane)];
    address += static_cast<std::uint64_t>(std::int64_t{detail.destination_displacement} - i.displacement);
    if (detail.destination_register == 4) address = static_cast<std::uint32_t>(address);
  });
  destination.open(warp, i, ptx::Space::shared);

  std::array<std::uint32_t, warp_size> source_bytes;
  source_bytes.fill(detail.bytes);
  if (detail.option == CopyOption::source_size) {
    const std::uint32_t* sizes = warp.source<std::uint32_t>(i, option_operand);
    for_lanes(lanes, [&](int lane) {
      const std::uint32_t size = sizes[lane];
      if (size > detail.bytes) {
        report(
            Severity::error, "copy-size",
            "cp.async of " + std::to_string(detail.bytes) + " bytes with a source of " + std::to_string(size),
            {&warp, lane, &i});
        throw KernelFault{715};
      }
      source_bytes[static_cast<std::size_t>(lane)] = size;
    });
  } else if (detail.option != CopyOption::none) {
    const LaneMask predicate = warp.predicate(i, option_operand);
    for_lanes(detail.option == CopyOption::ignore ? lanes & predicate : lanes & ~predicate,
              [&](int lane) { source_bytes[static_cast<std::size_t>(lane)] = 0; });
  }

  // Lanes that read equally many bytes read together.
  std::array<const std::byte*, warp_size> from{};
  std::array<std::uint32_t, warp_size> unwritten{};
  for (LaneMask rest = lanes; rest;) {
    const std::uint32_t size = source_bytes[static_cast<std::size_t>(std::countr_zero(rest))];
    LaneMask same = 0;
    for_lanes(rest, [&](int lane) {
      same |= LaneMask{source_bytes[static_cast<std::size_t>(lane)] == size} << lane;
    });
    rest &= ~same;
    if (size == 0) continue;
    MemoryAccess source(AccessKind::load, i, same);
    source.access.bytes = size;
    source.access.copy = source.access.carries = true;
    source.alignment = detail.bytes;
    warp.addresses(i, source_operand, detail.source_register, same, source.access.address);
    source.open(warp, i, ptx::Space::global);
    for_lanes(same, [&](int lane) {
      const auto l = static_cast<std::size_t>(lane);
      from[l] = source.host[l];
      if (source.unwritten)
        unwritten[l] = AddressSpace::instance().uninitialised(source.access.address[l], size);
    });
    source.close(warp, i);
  }

  for_lanes(lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    const auto shared = static_cast<std::uint32_t>(destination.access.address[l]);
    AsyncCopy copy{lane,
                   warp.copies.committed_groups[l],
                   shared,
                   detail.bytes,
                   from[l] ? source_bytes[l] : 0,
                   from[l],
                   {},
                   &i,
                   unwritten[l]};
    for (std::uint32_t k = 0; k < copy.source_bytes; ++k)
      copy.seen[k] = load_relaxed<std::byte>(copy.source + k);
    watch::copy_starts(warp, i, lane, shared, detail.bytes);
    warp.copies.pending.push_back(copy);
  });
  warp.copies.land = land_copies;
  warp.block().made_progress();
}

void execute_commit(Warp& warp, const Instruction&, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) { ++warp.copies.committed_groups[static_cast<std::size_t>(lane)]; });
}

/// Instruction.detail: how many of the thread's latest groups may stay pending.
void execute_wait(Warp& warp, const Instruction& i, LaneMask lanes) {
  land_due(warp, lanes, [&](const AsyncCopy& copy) {
    return copy.group + i.detail < warp.copies.committed_groups[static_cast<std::size_t>(copy.lane)];
  });
}

/// Commits and waits for all.
void execute_wait_all(Warp& warp, const Instruction& i, LaneMask lanes) {
  execute_commit(warp, i, lanes);
  land_copies(warp, lanes);
}

Execute decode_copy(Form& form) {
  Instruction& i = form.instruction();
  const std::string_view cache = form.take_one_of({"ca", "cg"});
  if (cache.empty() || form.take_one_of({"shared", "shared::cta"}).empty() || !form.take("global"))
    form.unknown("want .ca or .cg, .shared and .global");
  form.take_one_of({"L2::64B", "L2::128B", "L2::256B"});
  const bool policy = form.take("L2::cache_hint");
  form.finish();

  CopyDetail detail{};
  form.address(destination_operand);
  detail.destination_displacement = static_cast<std::int32_t>(i.displacement);
  detail.destination_register = static_cast<std::uint8_t>(form.address_bytes());
  form.address(source_operand);
  detail.source_register = static_cast<std::uint8_t>(form.address_bytes());
  const std::uint64_t bytes = form.literal(2);
  if (bytes != 16 && (cache == "cg" || (bytes != 4 && bytes != 8)))
    form.unknown("size " + std::to_string(bytes));
  detail.bytes = static_cast<std::uint8_t>(bytes);
  const std::size_t operands = form.operand_count() - policy;
  if (policy) form.ignore(operands);
  if (operands == 4 && form.is_register(3) && form.register_type(3) == ptx::Type::pred) {
    bool negated = false;
    form.source_predicate(3, negated);
    detail.option = negated ? CopyOption::ignore_unless : CopyOption::ignore;
  } else if (operands == 4) {
    form.source(3, ptx::Type::u32);
    detail.option = CopyOption::source_size;
  } else if (operands != 3) {
    form.unknown("number of operands");
  }
  i.detail = std::bit_cast<std::uint64_t>(detail);
  return execute_copy;
}

}  // namespace

void land_copies(Warp& warp, LaneMask lanes) {
  land_due(warp, lanes, [](const AsyncCopy&) { return true; });
}

Execute decode_cp(Form& form) {
  Instruction& i = form.instruction();
  i.kind = InstructionClass::async_copy;
  if (!form.take("async")) form.unknown("only cp.async");
  if (form.take("mbarrier")) return decode_copy_arrival(form);
  if (form.take("bulk")) return decode_bulk_copy(form);
  if (form.take("commit_group")) {
    form.finish();
    return execute_commit;
  }
  if (form.take("wait_all")) {
    form.finish();
    return execute_wait_all;
  }
  if (form.take("wait_group")) {
    form.finish();
    i.detail = form.literal(0);
    return execute_wait;
  }
  return decode_copy(form);
}

}  // namespace emulator
