#include "instructions/system_call.h"

#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "instructions/memory_unit.h"
#include "instructions/printf_format.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "machine/watch.h"
#include "memory/address_space.h"

namespace emulator {
namespace {

template <class T>
T argument(CallArea area, int lane, std::size_t offset) {
  T value;
  std::memcpy(&value, area.begin + static_cast<std::size_t>(lane) * area.stride + offset, sizeof value);
  return value;
}

template <class T>
void set_result(CallArea area, int lane, T value) {
  std::memcpy(area.begin + static_cast<std::size_t>(lane) * area.stride, &value, sizeof value);
}

/// The zero-terminated string at a generic address; nullopt when it runs out of memory that the thread may read.
std::optional<std::string> string_at(Warp& warp, int lane, std::uint64_t address) {
  std::string text;
  for (;; ++address) {
    const std::byte* at = generic_memory(warp, lane, address, 1);
    if (!at) return std::nullopt;
    if (*at == std::byte{0}) return text;
    text += static_cast<char>(*at);
  }
}

std::string triple(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
  return "[" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + "]";
}

/// Output of kernels that waits for a synchronising call of the host.
struct Output {
  std::mutex mutex;
  std::deque<std::string> calls;
  std::size_t bytes = 0, limit = 1 << 20;
};
Output& output() {
  static Output& instance = *new Output;  // never destroyed: printed at exit
  return instance;
}

/// vprintf(format, arguments): both generic addresses. The result is the number of arguments, or -1.
void print(Warp& warp, const Instruction& i, LaneMask lanes, CallArea arguments, CallArea results) {
  for_lanes(lanes, [&](int lane) {
    const auto format_address = argument<std::uint64_t>(arguments, lane, 0);
    const auto buffer_address = argument<std::uint64_t>(arguments, lane, 8);
    const PrintfArguments values{
        [&](std::size_t offset, void* to, std::size_t bytes) {
          const std::byte* from =
              buffer_address ? generic_memory(warp, lane, buffer_address + offset, bytes) : nullptr;
          if (from) std::memcpy(to, from, bytes);
          if (from && space_of(buffer_address) == ptx::Space::local)
            watch::local_used(warp, i, lane,
                              static_cast<std::uint32_t>((buffer_address & ~window_mask) + offset),
                              static_cast<std::uint32_t>(bytes));
          return from != nullptr;
        },
        [&](std::uint64_t address) {
          return address ? string_at(warp, lane, address) : std::string("(null)");
        }};
    const std::optional<std::string> format = string_at(warp, lane, format_address);
    std::size_t count = 0;
    const std::optional<std::string> text = format ? format_printf(*format, values, count) : std::nullopt;
    if (!text) {
      report(Severity::error, "printf",
             format ? "printf: cannot format \"" + *format + "\" with these arguments"
                    : "printf: the format is no string",
             {&warp, lane, &i});
    } else {
      Output& out = output();
      const std::lock_guard lock(out.mutex);
      out.bytes += text->size();
      out.calls.push_back(*text);
      while (out.bytes > out.limit && out.calls.size() > 1) {
        out.bytes -= out.calls.front().size();
        out.calls.pop_front();
      }
    }
    if (results.begin && results.stride)
      set_result<std::int32_t>(results, lane, text ? static_cast<std::int32_t>(count) : -1);
  });
}

/// __assertfail(expression, file, line, function, char size).
void fail_assertion(Warp& warp, const Instruction& i, LaneMask lanes, CallArea arguments, CallArea) {
  flush_printf();
  const ptx::Dim3 block = warp.block().position(), size = warp.block().launch().shape().block;
  for_lanes(lanes, [&](int lane) {
    const auto text = [&](std::size_t offset) {
      return string_at(warp, lane, argument<std::uint64_t>(arguments, lane, offset)).value_or("?");
    };
    const std::uint32_t thread = warp.thread(lane);
    std::fprintf(stderr, "%s:%u: %s: block: %s, thread: %s Assertion `%s` failed.\n", text(8).c_str(),
                 argument<std::uint32_t>(arguments, lane, 16), text(24).c_str(),
                 triple(block.x, block.y, block.z).c_str(),
                 triple(thread % size.x, thread / size.x % size.y, thread / size.x / size.y).c_str(),
                 text(0).c_str());
  });
  report(Severity::error, "assert", "an assertion of the kernel failed",
         {&warp, std::countr_zero(lanes), &i});
  throw KernelFault{710};
}

/// Memory that kernels hold by malloc, of all devices.
struct Heap {
  std::mutex mutex;
  std::map<int, std::size_t> held;  ///< bytes by device
  std::size_t limit = 8 << 20;
};
Heap& heap() {
  static Heap& instance = *new Heap;  // never destroyed: kernels run until the process ends
  return instance;
}
constexpr const char* heap_label = "malloc in a kernel";

/// malloc(bytes): 0 when the heap is full.
void allocate(Warp& warp, const Instruction&, LaneMask lanes, CallArea arguments, CallArea results) {
  const int device = warp.block().launch().device();
  for_lanes(lanes, [&](int lane) {
    const auto bytes = argument<std::uint64_t>(arguments, lane, 0);
    const Allocation* allocation = nullptr;
    Heap& h = heap();
    const std::lock_guard lock(h.mutex);
    std::size_t& held = h.held[device];
    if (bytes > 0 && held <= h.limit && bytes <= h.limit - held)
      allocation = AddressSpace::instance().allocate(AllocationKind::system, device, bytes, heap_label);
    if (allocation) held += bytes;
    set_result<std::uint64_t>(results, lane, allocation ? allocation->begin : 0);
  });
}

/// free(pointer): of a pointer that malloc has returned, or 0.
void release(Warp& warp, const Instruction& i, LaneMask lanes, CallArea arguments, CallArea) {
  for_lanes(lanes, [&](int lane) {
    const auto address = argument<std::uint64_t>(arguments, lane, 0);
    if (!address) return;
    AddressSpace& space = AddressSpace::instance();
    Heap& h = heap();
    const std::lock_guard lock(h.mutex);
    Allocation* const allocation = space.starting_at(address);
    if (!allocation || allocation->label != heap_label) {
      report(Severity::error, "bad-free",
             "free of a pointer that malloc has not returned: " + space.describe(address), {&warp, lane, &i});
      throw KernelFault{700};
    }
    h.held[allocation->device] -= allocation->bytes;
    space.free(*allocation);
  });
}

}  // namespace

SystemCall find_system_call(std::string_view name) {
  if (name == "vprintf") return print;
  if (name == "__assertfail") return fail_assertion;
  if (name == "malloc") return allocate;
  if (name == "free") return release;
  return nullptr;
}

void flush_printf() {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  for (const std::string& call : out.calls) std::fwrite(call.data(), 1, call.size(), stdout);
  if (!out.calls.empty()) std::fflush(stdout);
  out.calls.clear();
  out.bytes = 0;
}

void set_printf_limit(std::size_t bytes) {
  const std::lock_guard lock(output().mutex);
  output().limit = bytes;
}
std::size_t printf_limit() {
  const std::lock_guard lock(output().mutex);
  return output().limit;
}

void set_heap_limit(std::size_t bytes) {
  const std::lock_guard lock(heap().mutex);
  heap().limit = bytes;
}
std::size_t heap_limit() {
  const std::lock_guard lock(heap().mutex);
  return heap().limit;
}

}  // namespace emulator
