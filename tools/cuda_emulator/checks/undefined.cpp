#include "checks/undefined.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "checks/state.h"
#include "instructions/decode.h"
#include "instructions/memory_unit.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "memory/address_space.h"

namespace emulator {
namespace {

/// The bytes [0, bytes) of a lane's access as undefined bits.
struct Bytes {
  std::array<std::uint8_t, 32> bits{};
  Origin origin;
  std::uint32_t undefined = 0;  ///< a bit for each byte that has any

  void set(std::uint32_t byte, std::uint8_t value, const Origin& from) {
    if (!value) return;
    if (!undefined) origin = from;
    origin.computed |= from.computed;
    origin.padding &= from.padding;
    bits[byte] = value;
    undefined |= 1u << byte;
  }
  Bits element(std::uint32_t first, std::uint32_t bytes) const {
    Bits out = 0;
    for (std::uint32_t k = 0; k < bytes; ++k) out |= Bits{bits[first + k]} << 8 * k;
    return out;
  }
};

/// A bit for each byte of a lane's local memory that was never written.
std::uint32_t unwritten_local(Warp& warp, int lane, std::uint64_t address, std::uint32_t bytes) {
  std::uint32_t mask = 0;
  for (std::uint32_t k = 0; k < bytes; ++k) mask |= std::uint32_t{!warp.local_written(lane, address)[k]} << k;
  return mask;
}

/// The bytes of a lane's access to shared, global or local memory that were never written.
void load_unwritten(Warp& warp, const Instruction& i, const MemoryAccess& m, int lane, Bytes& bytes) {
  const std::uint64_t address = m.access.address[static_cast<std::size_t>(lane)];
  const ptx::Space space = m.shared >> lane & 1   ? ptx::Space::shared
                           : m.global >> lane & 1 ? ptx::Space::global
                                                  : ptx::Space::local;
  const auto unwritten = [&](std::uint64_t from, std::uint32_t count) {
    return space == ptx::Space::shared
               ? warp.block().checks().shared.unwritten(static_cast<std::uint32_t>(from), count)
           : space == ptx::Space::global ? AddressSpace::instance().uninitialised(from, count)
                                         : unwritten_local(warp, lane, from, count);
  };
  const std::uint32_t all = unwritten(address, m.access.bytes);
  const bool partial = all != static_cast<std::uint32_t>(low_bits(m.access.bytes));
  const bool debug = warp.block().launch().kernel().function->module->debug;
  for (std::uint32_t rest = all; rest; rest &= rest - 1) {
    const auto k = static_cast<std::uint32_t>(std::countr_zero(rest));
    const std::uint64_t at = address + k;
    const bool padding =
        partial || !(m.access.used >> k & 1) || (debug && unwritten(at / 16 * 16, 16) != 0xffff);
    bytes.set(k, 0xff, {&i, at, static_cast<std::int8_t>(lane), space, padding, false});
  }
}

/// "thread (3,0,0) at sort.cu:14, 'ld.shared.u32 %r1, [%r2];' (PTX line 57)"
std::string describe_load(const Warp& warp, const Origin& origin) {
  const ptx::Dim3& size = warp.block().launch().shape().block;
  const std::uint32_t thread = warp.thread(origin.lane);
  std::string text = "thread (" + std::to_string(thread % size.x) + "," +
                     std::to_string(thread / size.x % size.y) + "," +
                     std::to_string(thread / size.x / size.y) + ") at ";
  const ptx::Statement& s = *origin.load->statement;
  const ptx::Module* module = warp.block().launch().kernel().function->module;
  if (module && s.place.source_line && s.place.file < module->files.size())
    text += module->files[s.place.file] + ":" + std::to_string(s.place.source_line) + ", ";
  return text + "'" + s.text + "' (PTX line " + std::to_string(s.place.line) + ")";
}

/// Whether the lane's access lies in parameters of functions, the only ones that a program writes.
bool in_parameters(const Instruction& i) { return i.memory.space == ptx::Space::param; }

}  // namespace

void UndefinedValues::set(const Frame* frame, Slot slot, LaneMask lanes, const UndefinedRow& row) {
  if (slot.where == 0 && frame) return;  // the sink
  if (!(row.lanes & lanes)) return clear(frame, slot, lanes);
  const Bits all = all_bits(slot.width);
  UndefinedRow& mine = rows_[{frame, slot.where}];
  for_lanes(lanes, [&](int lane) {
    mine.set(lane, row.at(lane) & all, row.origin[static_cast<std::size_t>(lane)]);
  });
  if (!mine.lanes) rows_.erase({frame, slot.where});
}

void UndefinedValues::clear(const Frame* frame, Slot slot, LaneMask lanes) {
  const auto found = rows_.find({frame, slot.where});
  if (found == rows_.end()) return;
  found->second.lanes &= ~lanes;
  if (!found->second.lanes) rows_.erase(found);
}

void UndefinedValues::execute(Warp& warp, const Instruction& i, LaneMask lanes) {
  Frame* const frame = &warp.frame();
  if (i.guarded) use(warp, i, i.guard, warp.group());
  if (!lanes && !i.always) return;
  bool some = row(nullptr, carry) != nullptr;
  for (int k = 0; k < i.operand_count && !some; ++k) some = row(frame, i.operands[k]) != nullptr;
  if (some) {
    if (i.undefined) {
      i.undefined->apply(*i.undefined, *this, warp, i, lanes);
    } else {
      for (int k = 0; k < i.operand_count; ++k) {
        if (i.operands[k].written)
          clear(frame, i.operands[k], lanes);
        else
          use(warp, i, i.operands[k], lanes);
      }
    }
  }
  const std::string& opcode = i.statement->opcode;
  if (memory_.empty() || i.kind != InstructionClass::control || (opcode != "call" && opcode != "ret"))
    return i.execute(warp, i, lanes);
  if (opcode == "ret") {
    if (frame->caller) {
      const auto& site = *static_cast<const CallSite*>(frame->call->extra);
      for (std::size_t k = 0; k < site.results.size(); ++k)
        copy_parameters(frame, frame->function->results[k].offset, frame->caller, site.results[k].offset,
                        std::min(site.results[k].bytes, frame->function->results[k].bytes), lanes);
    }
    return i.execute(warp, i, lanes);
  }
  const auto* site = static_cast<const CallSite*>(i.extra);
  if (site->system) use_parameters(warp, i, lanes);
  i.execute(warp, i, lanes);
  if (const Frame& entered = warp.frame(); &entered != frame)
    for (std::size_t k = 0; k < site->arguments.size(); ++k)
      copy_parameters(frame, site->arguments[k].offset, &entered, entered.function->parameters[k].offset,
                      std::min(site->arguments[k].bytes, entered.function->parameters[k].bytes),
                      entered.lanes);
}

std::array<UndefinedRow, 8> UndefinedValues::moved(Warp& warp, const Instruction& i, LaneMask lanes,
                                                   std::uint32_t controls) {
  constexpr std::size_t row_bytes = 16 * warp_size;
  std::array<UndefinedRow, 8> results;
  alignas(64) std::array<std::byte, 8 * row_bytes> registers{};
  std::array<Slot, 8> slots;
  const Frame* const frame = &warp.frame();
  for (int k = 0; k < i.operand_count; ++k) {
    const Slot slot = i.operands[k];
    const auto at = static_cast<std::size_t>(k) * row_bytes;
    slots[static_cast<std::size_t>(k)] = {static_cast<std::int32_t>(at), slot.width, slot.written};
    const UndefinedRow* const undefined = row(frame, slot);
    if (slot.written) continue;
    if (controls >> k & 1) {
      std::memcpy(registers.data() + at, warp.source<std::byte>(i, k),
                  slot.width ? std::size_t{slot.width} * warp_size : sizeof(LaneMask));
    } else if (undefined) {
      for_lanes(lanes & undefined->lanes, [&](int lane) {
        const auto l = static_cast<std::size_t>(lane);
        std::memcpy(registers.data() + at + l * slot.width, &undefined->bits[l], slot.width);
      });
    }
  }
  Instruction on_bits = i;
  on_bits.operands = slots.data();
  std::byte* const values = warp.registers_;
  warp.registers_ = registers.data();
  i.execute(warp, on_bits, lanes);
  warp.registers_ = values;
  for_lanes(lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    // A lane whose control is undefined has no defined bit.
    Origin origin;
    bool spoiled = false;
    for (int k = 0; k < i.operand_count && !spoiled; ++k) {
      const UndefinedRow* const undefined = i.operands[k].written ? nullptr : row(frame, i.operands[k]);
      if (!undefined || !undefined->at(lane)) continue;
      if (!origin.load) origin = undefined->origin[l];
      if (controls >> k & 1) {
        spoiled = true;
        origin = undefined->origin[l];
        origin.computed = true;
      }
    }
    for (int k = 0; k < i.operand_count; ++k) {
      if (!i.operands[k].written) continue;
      Bits bits = 0;
      std::memcpy(&bits, registers.data() + static_cast<std::size_t>(k) * row_bytes + l * i.operands[k].width,
                  i.operands[k].width);
      results[static_cast<std::size_t>(k)].set(lane, spoiled ? ~Bits{0} : bits, origin);
    }
  });
  return results;
}

void UndefinedValues::use(Warp& warp, const Instruction& i, Slot slot, LaneMask lanes) {
  const UndefinedRow* const undefined = row(&warp.frame(), slot);
  if (!undefined || !(undefined->lanes & lanes)) return;
  const Instruction* reported = nullptr;
  for_lanes(undefined->lanes & lanes, [&](int lane) {
    const Origin& origin = undefined->origin[static_cast<std::size_t>(lane)];
    if (origin.load != reported) report_use(warp, i, lane, origin);
    reported = origin.load;
  });
  clear(&warp.frame(), slot, lanes);
}

void UndefinedValues::report_use(Warp& warp, const Instruction& i, int lane, const Origin& origin) {
  const char* const kind = origin.space == ptx::Space::shared  ? "uninitialised-shared"
                           : origin.space == ptx::Space::local ? "uninitialised-local"
                                                               : "uninitialised-global";
  const ReportPlace place{&warp, lane, &i};
  if (repeated(kind, place)) return;
  const std::string what =
      origin.space == ptx::Space::shared
          ? "shared memory never written: offset " + std::to_string(origin.address - reserved_shared)
      : origin.space == ptx::Space::local
          ? "local memory never written: offset " + std::to_string(origin.address)
          : "global memory never written: " + AddressSpace::instance().describe(origin.address);
  report(Severity::error, kind,
         "read of " + what + ", by " + describe_load(warp, origin) + "; the value is used here", place);
}

void UndefinedValues::load(Warp& warp, const Instruction& i, const MemoryAccess& m, bool sign,
                           std::uint32_t register_bytes) {
  const Frame* const frame = &warp.frame();
  const std::uint32_t element_bytes = i.memory.element_bytes;
  std::array<UndefinedRow, 8> rows;
  for_lanes(m.access.lanes, [&](int lane) {
    const std::uint64_t address = m.access.address[static_cast<std::size_t>(lane)];
    const bool shared = m.shared >> lane & 1, global = m.global >> lane & 1;
    Bytes bytes;
    if (shared || global) {
      if (m.unwritten) load_unwritten(warp, i, m, lane, bytes);
    } else if ((address & window_mask) == 0) {  // not a parameter of the kernel
      if (m.unwritten && !in_parameters(i)) load_unwritten(warp, i, m, lane, bytes);
      const Frame* const owner = in_parameters(i) ? frame : nullptr;
      const auto offset = static_cast<std::uint32_t>(address);
      for (auto it = memory_.lower_bound({owner, lane, offset});
           it != memory_.end() && it->first < Place{owner, lane, offset + m.access.bytes}; ++it)
        bytes.set(it->first.offset - offset, it->second.bits, it->second.origin);
    }
    if (!bytes.undefined) return;
    for (std::uint32_t k = 0; k < i.memory.vector; ++k) {
      Bits bits = bytes.element(k * element_bytes, element_bytes);
      if (sign && bits >> (8 * element_bytes - 1) & 1) bits |= ~low_bits(8 * element_bytes);
      rows[k].set(lane, bits & all_bits(register_bytes), bytes.origin);
    }
  });
  for (std::uint32_t k = 0; k < i.memory.vector; ++k) set(frame, i.operands[k], m.access.lanes, rows[k]);
}

void UndefinedValues::store(Warp& warp, const Instruction& i, const MemoryAccess& m) {
  const Frame* const frame = &warp.frame();
  const std::uint32_t element_bytes = i.memory.element_bytes;
  std::array<const UndefinedRow*, 8> rows;
  for (std::uint32_t k = 0; k < i.memory.vector; ++k) rows[k] = row(frame, i.operands[1 + k]);
  const Instruction* reported = nullptr;
  for_lanes(m.access.lanes, [&](int lane) {
    const std::uint64_t address = m.access.address[static_cast<std::size_t>(lane)];
    Bytes bytes;
    for (std::uint32_t k = 0; k < i.memory.vector; ++k) {
      const Bits bits = rows[k] ? rows[k]->at(lane) : 0;
      for (std::uint32_t b = 0; b < element_bytes; ++b)
        bytes.set(k * element_bytes + b, static_cast<std::uint8_t>(bits >> 8 * b),
                  bits ? rows[k]->origin[static_cast<std::size_t>(lane)] : Origin());
    }
    if (m.shared >> lane & 1) {
      warp.block().checks().shared.forget_written(static_cast<std::uint32_t>(address), bytes.undefined);
    } else if (m.global >> lane & 1) {
      if (!bytes.undefined) return;
      if (bytes.origin.computed || !bytes.origin.padding) {
        if (bytes.origin.load != reported) report_use(warp, i, lane, bytes.origin);
        reported = bytes.origin.load;
        return;
      }
      for (std::uint32_t rest = bytes.undefined; rest; rest &= rest - 1)
        AddressSpace::instance().mark_uninitialised(
            address + static_cast<std::uint64_t>(std::countr_zero(rest)), 1);
    } else {
      const Frame* const owner = in_parameters(i) ? frame : nullptr;
      const auto offset = static_cast<std::uint32_t>(address);
      erase(owner, lane, offset, offset + m.access.bytes);
      for (std::uint32_t rest = bytes.undefined; rest; rest &= rest - 1) {
        const auto k = static_cast<std::uint32_t>(std::countr_zero(rest));
        memory_[{owner, lane, offset + k}] = {bytes.bits[k], bytes.origin};
      }
    }
  });
}

void UndefinedValues::use_local(Warp& warp, const Instruction& i, int lane, std::uint32_t offset,
                                std::uint32_t bytes) {
  for (std::uint32_t k = 0; k < bytes && checks_enabled(); ++k)
    if (!*warp.local_written(lane, offset + k))
      return report_use(warp, i, lane,
                        {&i, offset + k, static_cast<std::int8_t>(lane), ptx::Space::local, false, false});
  if (!warp.undefined()) return;
  const auto& memory = warp.undefined()->memory_;
  const auto found = memory.lower_bound({nullptr, lane, offset});
  if (found == memory.end() || !(found->first < Place{nullptr, lane, offset + bytes})) return;
  report_use(warp, i, lane, found->second.origin);
}

/// The arguments of a system call; its results are defined.
void UndefinedValues::use_parameters(Warp& warp, const Instruction& i, LaneMask lanes) {
  const Frame* const frame = &warp.frame();
  const auto& site = *static_cast<const CallSite*>(i.extra);
  for_lanes(lanes, [&](int lane) {
    for (const CallSite::Copy& argument : site.arguments) {
      const auto found = memory_.lower_bound({frame, lane, argument.offset});
      if (found != memory_.end() && found->first < Place{frame, lane, argument.offset + argument.bytes})
        report_use(warp, i, lane, found->second.origin);
    }
    for (const CallSite::Copy& result : site.results)
      erase(frame, lane, result.offset, result.offset + result.bytes);
  });
}

void UndefinedValues::erase(const Frame* frame, int lane, std::uint64_t from, std::uint64_t to) {
  auto it = memory_.lower_bound({frame, lane, static_cast<std::uint32_t>(from)});
  while (it != memory_.end() && it->first.frame == frame && it->first.lane == lane && it->first.offset < to)
    it = memory_.erase(it);
}

void UndefinedValues::leave(const Frame& frame, LaneMask lanes) {
  for (auto it = rows_.begin(); it != rows_.end();) {
    if (it->first.frame == &frame) it->second.lanes &= ~lanes;
    it = it->second.lanes ? std::next(it) : rows_.erase(it);
  }
  if (memory_.empty()) return;
  for_lanes(lanes, [&](int lane) {
    erase(&frame, lane, 0, ~std::uint64_t{0});
    erase(nullptr, lane, frame.local_base, ~std::uint64_t{0});
  });
}

void UndefinedValues::exit(LaneMask lanes) {
  for (auto it = rows_.begin(); it != rows_.end();) {
    it->second.lanes &= ~lanes;
    it = it->second.lanes ? std::next(it) : rows_.erase(it);
  }
  std::erase_if(memory_, [&](const auto& byte) { return lanes >> byte.first.lane & 1; });
}

void UndefinedValues::copy_parameters(const Frame* from, std::uint32_t from_offset, const Frame* to,
                                      std::uint32_t to_offset, std::uint32_t bytes, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    erase(to, lane, to_offset, to_offset + bytes);
    for (std::uint32_t k = 0; k < bytes; ++k)
      if (const auto found = memory_.find({from, lane, from_offset + k}); found != memory_.end())
        memory_[{to, lane, to_offset + k}] = Byte(found->second);
  });
}

void UndefinedValues::shuffle(std::span<const Participant> participants, int to, int from,
                              const std::array<std::uint8_t, warp_size>& sources, LaneMask invalid) {
  UndefinedRow before;
  for (const Participant& p : participants)
    if (const UndefinedRow* const mine = row(p.frame, p.instruction->operands[from]))
      for_lanes(p.lanes & mine->lanes, [&](int lane) {
        before.set(lane, mine->at(lane), mine->origin[static_cast<std::size_t>(lane)]);
      });
  for (const Participant& p : participants) {
    UndefinedRow after;
    for_lanes(p.lanes & ~invalid, [&](int lane) {
      const int source = sources[static_cast<std::size_t>(lane)];
      after.set(lane, before.at(source), before.origin[static_cast<std::size_t>(source)]);
    });
    set(p.frame, p.instruction->operands[to], p.lanes, after);
  }
}

}  // namespace emulator
