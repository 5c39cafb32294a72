#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "machine/program.h"

/// Where the registers of a function lie in the memory of its frames.
///
/// PTX has a register for each value, thousands in a large kernel. Registers of one width share a row when no lane needs both
/// at one time. A lane touches its own column of a row alone, and its way through the code is a path of the control-flow graph whatever
/// the other lanes of its warp do meanwhile. So it is enough that the two are never live at one instruction of any path.
namespace emulator {

/// The slot that stands for a register while its function is being decoded. Constants and the sink keep their own slots.
constexpr std::int32_t sink_row = 0;
constexpr Slot sink_slot{sink_row, 16, true};
constexpr Slot slot_of_register(std::uint32_t number, std::uint32_t width, bool written) {
  return {static_cast<std::int32_t>(number + 1), static_cast<std::uint8_t>(width), written};
}

/// Bytes of the row of a register `width` bytes wide (0: predicate).
constexpr std::uint32_t row_bytes(std::uint32_t width) {
  return width == 0 ? sizeof(LaneMask) : (width < 2 ? 2 : width) * warp_size;
}

/// Gives each register a row and puts the rows' places into the slots (`operands`: those of all instructions) and guards of the
/// function. `widths`: of each register in bytes, 0 for predicates. Sets Function::register_bytes, Function::read_first and
/// Instruction::results_unused.
void assign_rows(Function& function, std::span<Slot> operands, const std::vector<std::uint32_t>& widths);

/// Memory of rows: aligned for vector loads. Bytes that come with a resize hold anything.
template <class T>
struct RowAllocator {
  using value_type = T;
  static constexpr std::align_val_t alignment{64};
  RowAllocator() = default;
  template <class U>
  RowAllocator(const RowAllocator<U>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), alignment)); }
  void deallocate(T* at, std::size_t) { ::operator delete(at, alignment); }
  void construct(T*) {}
  bool operator==(const RowAllocator&) const { return true; }
};
using RowMemory = std::vector<std::byte, RowAllocator<std::byte>>;

}  // namespace emulator
