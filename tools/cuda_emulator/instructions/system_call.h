#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "machine/lanes.h"

/// Functions that the device's system supplies and PTX declares as `.extern .func`: vprintf, __assertfail, malloc, free.
namespace emulator {

class Warp;
struct Instruction;

/// Where the lanes' arguments or results of a call lie: lane l's begin at l * stride. Within a lane each parameter
/// follows the one before at its natural alignment, as the PTX declaration lists them.
struct CallArea {
  std::byte* begin = nullptr;
  std::uint32_t stride = 0;
};

/// Executes the call for the lanes, in lane order. `i`: the call statement, for reports. Throws KernelFault (__assertfail: 710).
using SystemCall = void (*)(Warp& warp, const Instruction& i, LaneMask lanes, CallArea arguments,
                            CallArea results);

/// nullptr when the system has no function of that name.
SystemCall find_system_call(std::string_view name);

/// Prints to standard output what kernels have printed by vprintf since the last call, in order of arrival. The runtime
/// calls it at synchronising calls, after the work they waited for, and at exit.
void flush_printf();
/// Bytes of the FIFO of vprintf (cudaLimitPrintfFifoSize, default 1 MiB): output beyond it replaces the oldest calls.
void set_printf_limit(std::size_t bytes);
std::size_t printf_limit();

/// Bytes that kernels may hold by malloc at once on a device (cudaLimitMallocHeapSize, default 8 MiB).
void set_heap_limit(std::size_t bytes);
std::size_t heap_limit();

}  // namespace emulator
