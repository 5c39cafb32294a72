#include "instructions/memory_unit.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>

#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "machine/watch.h"
#include "memory/address_space.h"

namespace emulator {
namespace {

enum CudaError { illegal_address = 700, misaligned_address = 716, invalid_address_space = 717 };

/// Lanes that span more than this are translated one by one, so that memory between them stays untouched.
constexpr std::uint64_t translated_together = 1 << 16;

const char* name_of(AccessKind kind) {
  switch (kind) {
    case AccessKind::load:
      return "read";
    case AccessKind::store:
      return "write";
    case AccessKind::atomic:
      return "atomic access";
  }
  return "";
}

std::string hexadecimal(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%" PRIx64, value);
  return text;
}

/// One lane's access that may not be done.
struct Fault {
  const Warp& warp;
  const Instruction& instruction;
  const Access& access;
  int lane;

  [[noreturn]] void end(int error, const char* kind, const std::string& where) const {
    report(Severity::error, kind,
           std::string(kind) + " " + name_of(access.kind) + " of " + std::to_string(access.bytes) +
               " bytes at " + where,
           {&warp, lane, &instruction});
    throw KernelFault{error};
  }
  std::uint64_t address() const { return access.address[static_cast<std::size_t>(lane)]; }
};

struct Extent {
  std::uint64_t lowest = ~std::uint64_t{0}, highest = 0;
};

/// Lowest and highest address of the lanes. Ends the kernel when an address is not aligned.
Extent extent_of(const Warp& warp, const Instruction& i, const Access& access, std::uint32_t alignment) {
  Extent extent;
  std::uint64_t bits = 0;
  for_lanes(access.lanes, [&](int lane) {
    const std::uint64_t address = access.address[static_cast<std::size_t>(lane)];
    bits |= address;
    extent.lowest = std::min(extent.lowest, address);
    extent.highest = std::max(extent.highest, address);
  });
  if (bits & (alignment - 1)) [[unlikely]]
    for_lanes(access.lanes, [&](int lane) {
      const Fault fault{warp, i, access, lane};
      if (fault.address() & (alignment - 1))
        fault.end(misaligned_address, "misaligned",
                  hexadecimal(fault.address()) + ", which is no multiple of " + std::to_string(alignment));
    });
  return extent;
}

[[noreturn]] void end_global(const Fault& fault) {
  const std::uint64_t address = fault.address();
  switch (space_of(address)) {
    case ptx::Space::shared:
      fault.end(invalid_address_space, "wrong-window",
                hexadecimal(address) + ": an address of shared memory");
    case ptx::Space::local:
      fault.end(invalid_address_space, "wrong-window", hexadecimal(address) + ": an address of local memory");
    case ptx::Space::param:
      fault.end(invalid_address_space, "wrong-window",
                hexadecimal(address) + ": an address of kernel parameters");
    default:
      break;
  }
  if (address < 4096) fault.end(illegal_address, "out-of-bounds", hexadecimal(address) + ": a null pointer");
  AddressSpace& space = AddressSpace::instance();
  const Translation translation = space.translate(address, fault.access.bytes);
  fault.end(illegal_address, translation.after_free ? "use-after-free" : "out-of-bounds",
            hexadecimal(address) + ": " + space.describe(address, fault.access.bytes));
}

void open_global(MemoryAccess& m, Warp& warp, const Instruction& i, const Access& access, bool constant) {
  const Extent extent = extent_of(warp, i, access, m.alignment);
  Block& block = warp.block();
  // Kernels may free memory too.
  if (const std::uint64_t generation = AddressSpace::instance().generation();
      generation != block.translations_of) [[unlikely]] {
    for (TranslationCache& cache : block.translations) cache.clear();
    block.translations_of = generation;
  }
  TranslationCache& cache = block.translations[i.index % block.translations.size()];
  const std::uint64_t span = extent.highest - extent.lowest + access.bytes;
  std::byte* const first = span <= translated_together ? cache.translate(extent.lowest, span) : nullptr;
  if (first) {
    for_lanes(access.lanes, [&](int lane) {
      const auto l = static_cast<std::size_t>(lane);
      m.host[l] = first + (access.address[l] - extent.lowest);
    });
  } else {
    for_lanes(access.lanes, [&](int lane) {
      const auto l = static_cast<std::size_t>(lane);
      m.host[l] = cache.translate(access.address[l], access.bytes);
      if (!m.host[l]) m.host[l] = AddressSpace::instance().translate(access.address[l], access.bytes).host;
      if (!m.host[l]) [[unlikely]]
        end_global({warp, i, access, lane});
    });
  }
  m.unwritten |= watch::global_access(warp, i, access);
  if (!constant) block.tally().global(access);
}

void open_shared(MemoryAccess& m, Warp& warp, const Instruction& i, const Access& access) {
  const Extent extent = extent_of(warp, i, access, m.alignment);
  Block& block = warp.block();
  const std::uint64_t end = block.shared_bytes();
  const Kernel& kernel = block.launch().kernel();
  for (const SharedGap& gap : kernel.shared_gaps)
    if (extent.highest + access.bytes > gap.begin && extent.lowest < gap.end) [[unlikely]]
      for_lanes(access.lanes, [&](int lane) {
        const Fault fault{warp, i, access, lane};
        const std::uint64_t at = fault.address();
        if (at >= gap.end || at + access.bytes <= gap.begin) return;
        fault.end(illegal_address, "out-of-bounds",
                  "shared memory: offset " + std::to_string(at + gap.bytes - gap.begin) +
                      " of the variable " + gap.variable + ", which has " + std::to_string(gap.bytes) +
                      " bytes");
      });
  if (extent.lowest < reserved_shared || extent.highest > end || end - extent.highest < access.bytes)
      [[unlikely]]
    for_lanes(access.lanes, [&](int lane) {
      const Fault fault{warp, i, access, lane};
      const std::uint64_t at = fault.address();
      if (at < reserved_for_groups && reserved_for_groups - at >= access.bytes) return;
      if (at >= reserved_shared && at <= end && end - at >= access.bytes) return;
      if ((at & window_mask) != 0)
        fault.end(invalid_address_space, "wrong-window",
                  hexadecimal(at) + ", which is no address of shared memory");
      const std::string size = " of the block's " +
                               std::to_string(end - kernel.shared_gap_bytes - reserved_shared) +
                               " bytes of shared memory";
      fault.end(
          illegal_address, "out-of-bounds",
          at < reserved_shared
              ? "shared memory: " + std::to_string(reserved_shared - at) + " bytes before the start" + size
              : "shared memory: offset " + std::to_string(at - reserved_shared) + size);
    });
  for_lanes(access.lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    m.host[l] = block.shared() + access.address[l];
  });
  m.unwritten |= watch::shared_access(warp, i, access);
  block.tally().shared(access, m.matrix_rows);
}

/// Marks bytes of local memory as written, or asks for the marks: `Mark` covers as many bytes at once.
template <class Mark>
void note_local(MemoryAccess& m, Warp& warp, const Access& access) {
  constexpr Mark all_written = static_cast<Mark>(0x0101'0101'0101'0101);
  for_lanes(access.lanes, [&](int lane) {
    std::uint8_t* const marks = warp.local_written(lane, access.address[static_cast<std::size_t>(lane)]);
    for (std::uint32_t k = 0; k < access.bytes; k += sizeof(Mark)) {
      if (access.kind != AccessKind::load) {
        std::memcpy(marks + k, &all_written, sizeof(Mark));
      } else {
        Mark mark;
        std::memcpy(&mark, marks + k, sizeof(Mark));
        m.unwritten |= mark != all_written;
      }
    }
  });
}

void open_local(MemoryAccess& m, Warp& warp, const Instruction& i, const Access& access) {
  extent_of(warp, i, access, m.alignment);
  for_lanes(access.lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    m.host[l] = warp.local(lane, access.address[l], access.bytes);
    if (!m.host[l]) [[unlikely]] {
      const Fault fault{warp, i, access, lane};
      if (fault.address() & window_mask)
        fault.end(invalid_address_space, "wrong-window",
                  hexadecimal(fault.address()) + ", which is no address of local memory");
      fault.end(illegal_address, "out-of-bounds", "local memory: offset " + std::to_string(fault.address()));
    }
  });
  if (checks_enabled()) {
    switch (access.bytes) {
      case 4:
        note_local<std::uint32_t>(m, warp, access);
        break;
      case 8:
        note_local<std::uint64_t>(m, warp, access);
        break;
      default:
        note_local<std::uint8_t>(m, warp, access);
    }
  }
  warp.block().tally().local(access.bytes, access.lanes);
}

void open_parameters(MemoryAccess& m, Warp& warp, const Instruction& i, const Access& access) {
  const Launch& launch = warp.block().launch();
  Frame& frame = warp.frame();
  const std::uint32_t frame_bytes = frame.function->parameter_bytes;
  const Extent extent = extent_of(warp, i, access, m.alignment);
  // Mostly all lanes read one parameter of the kernel.
  if (const std::uint64_t at = extent.lowest - parameter_window;
      extent.lowest == extent.highest && access.kind == AccessKind::load && at <= launch.parameter_bytes() &&
      launch.parameter_bytes() - at >= access.bytes) {
    m.host.fill(const_cast<std::byte*>(launch.parameters()) + at);
    return;
  }
  for_lanes(access.lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    const std::uint64_t address = access.address[l], at = address & ~window_mask;
    const bool of_kernel = (address & window_mask) == parameter_window;
    const std::uint64_t size = of_kernel ? launch.parameter_bytes() : frame_bytes;
    const Fault fault{warp, i, access, lane};
    if (!of_kernel && (address & window_mask) != 0) [[unlikely]]
      fault.end(invalid_address_space, "wrong-window",
                hexadecimal(address) + ", which is no address of a parameter");
    if (at > size || size - at < access.bytes) [[unlikely]]
      fault.end(illegal_address, "out-of-bounds",
                "offset " + std::to_string(at) + " of " + std::to_string(size) + " bytes of parameters");
    if (of_kernel && access.kind != AccessKind::load) [[unlikely]]
      fault.end(illegal_address, "read-only", "offset " + std::to_string(at) + " of the kernel's parameters");
    m.host[l] = of_kernel ? const_cast<std::byte*>(launch.parameters()) + at
                          : frame.parameters.data() + std::size_t{l} * frame_bytes + at;
  });
}

void open_space(MemoryAccess& m, Warp& warp, const Instruction& i, const Access& access, ptx::Space space) {
  switch (space) {
    case ptx::Space::global:
      m.global |= access.lanes;
      return open_global(m, warp, i, access, false);
    case ptx::Space::constant:
      m.global |= access.lanes;
      return open_global(m, warp, i, access, true);
    case ptx::Space::shared:
      m.shared |= access.lanes;
      return open_shared(m, warp, i, access);
    case ptx::Space::local:
      return open_local(m, warp, i, access);
    default:
      return open_parameters(m, warp, i, access);
  }
}

/// Whether the store changes a byte that other threads can see.
bool differs(const MemoryAccess& m) {
  for (LaneMask rest = m.global | m.shared; rest; rest &= rest - 1) {
    const auto lane = static_cast<std::size_t>(std::countr_zero(rest));
    std::array<std::byte, 32> old;
    read_bytes(m.host[lane], old.data(), m.access.bytes);
    if (std::memcmp(old.data(), m.access.stored + lane * m.access.stored_stride, m.access.bytes)) return true;
  }
  return false;
}

}  // namespace

MemoryAccess::MemoryAccess(AccessKind kind, const Instruction& i, LaneMask lanes) {
  access.kind = kind;
  access.order = i.memory.order;
  access.scope = i.memory.scope;
  access.read_only = i.memory.read_only;
  access.bytes = std::uint32_t{i.memory.vector} * i.memory.element_bytes;
  access.used = i.memory.used_bytes;
  access.lanes = lanes;
}

void MemoryAccess::open(Warp& warp, const Instruction& i, ptx::Space space) {
  if (!access.lanes) return;
  if (!alignment) alignment = access.bytes;
  open_spaces(warp, i, space);
  if (access.kind == AccessKind::store && access.stored && !warp.block().progressed())
    changes = differs(*this);
}

void MemoryAccess::open_spaces(Warp& warp, const Instruction& i, ptx::Space space) {
  if (space != ptx::Space::none) return open_space(*this, warp, i, access, space);

  // Generic addresses: one window at a time, mostly the only one.
  for (LaneMask rest = access.lanes; rest;) {
    const std::uint64_t window =
        access.address[static_cast<std::size_t>(std::countr_zero(rest))] & window_mask;
    LaneMask lanes = 0;
    for_lanes(rest, [&](int lane) {
      lanes |= LaneMask{(access.address[static_cast<std::size_t>(lane)] & window_mask) == window} << lane;
    });
    rest &= ~lanes;
    const ptx::Space part_space = space_of(window);
    if (part_space == ptx::Space::shared || part_space == ptx::Space::local)
      for_lanes(lanes, [&](int lane) { access.address[static_cast<std::size_t>(lane)] &= ~window_mask; });
    if (lanes == access.lanes) return open_space(*this, warp, i, access, part_space);
    Access part = access;
    part.lanes = lanes;
    open_space(*this, warp, i, part, part_space);
  }
}

void MemoryAccess::close(Warp& warp, const Instruction& i) {
  if (access.kind != AccessKind::load && changes && (global | shared)) warp.block().made_progress();
  if (!global || (access.kind != AccessKind::atomic && access.order == Order::weak)) return;
  if (global == access.lanes) return watch::global_access_done(warp, i, access);
  Access part = access;
  part.lanes = global;
  watch::global_access_done(warp, i, part);
}

std::byte* generic_memory(Warp& warp, int lane, std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t at = address & ~window_mask;
  const auto inside = [&](std::uint64_t size) { return at <= size && size - at >= bytes; };
  switch (space_of(address)) {
    case ptx::Space::shared: {
      Block& block = warp.block();
      return inside(block.shared_bytes()) ? block.shared() + at : nullptr;
    }
    case ptx::Space::local:
      return warp.local(lane, at, static_cast<std::uint32_t>(bytes));
    case ptx::Space::param: {
      const Launch& launch = warp.block().launch();
      return inside(launch.parameter_bytes()) ? const_cast<std::byte*>(launch.parameters()) + at : nullptr;
    }
    default:
      return AddressSpace::instance().translate(address, bytes).host;
  }
}

void notice_spinning(Warp& warp, const Instruction& i, const MemoryAccess& access, const Digest& read) {
  constexpr std::uint32_t patience = 32;
  Spin& spin = warp.spins.front().instruction == &i ? warp.spins.front() : warp.spin_of(i);
  if (spin.digest != read.value()) {
    spin.digest = read.value();
    spin.times = 0;
    return;
  }
  if (++spin.times < patience) return;
  const auto lowest = static_cast<std::size_t>(std::countr_zero(access.access.lanes));
  spin.lanes = access.access.lanes;
  if (spin.times == patience || spin.address != access.access.address[lowest]) {
    spin.address = access.access.address[lowest];
    spin.foreign = access.global && AddressSpace::instance().written_from_outside(spin.address);
  }
  spin.value = read.first();
  spin.foreign ? warp.yield() : warp.wait();
}

void take_memory_modifiers(Form& form, Order unnamed) {
  MemoryModifiers& memory = form.instruction().memory;
  memory.order = unnamed;
  memory.scope = unnamed == Order::weak ? Scope::thread : Scope::device;
  if (form.take("volatile")) {
    memory.order = Order::relaxed;
    memory.scope = Scope::system;
  } else if (const std::string_view order =
                 form.take_one_of({"weak", "relaxed", "acquire", "release", "acq_rel", "mmio"});
             !order.empty()) {
    memory.order = order == "weak"      ? Order::weak
                   : order == "acquire" ? Order::acquire
                   : order == "release" ? Order::release
                   : order == "acq_rel" ? Order::acquire_release
                                        : Order::relaxed;
    if (order == "mmio" && form.take("relaxed")) memory.order = Order::relaxed;
    if (order == "relaxed") form.take("mmio");
  }
  if (const std::string_view scope = form.take_one_of({"cta", "cluster", "gpu", "sys"}); !scope.empty())
    memory.scope = scope == "cta"       ? Scope::block
                   : scope == "cluster" ? Scope::cluster
                   : scope == "gpu"     ? Scope::device
                                        : Scope::system;
  const std::string_view space = form.take_one_of({"global", "shared", "shared::cta", "shared::cluster",
                                                   "local", "const", "param", "param::entry", "param::func"});
  memory.space = space.empty()                 ? ptx::Space::none
                 : space == "global"           ? ptx::Space::global
                 : space.starts_with("shared") ? ptx::Space::shared
                 : space == "local"            ? ptx::Space::local
                 : space == "const"            ? ptx::Space::constant
                                               : ptx::Space::param;
}

}  // namespace emulator
