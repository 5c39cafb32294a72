#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "machine/lanes.h"
#include "machine/program.h"

/// Values that come from memory nobody has written. Such a load is no error yet: its bits are undefined, instructions hand
/// them on, and what depends on them is reported when it decides something: a branch, an address, an atomic, a value stored to global
/// memory. What instructions make of undefined bits: checks/undefined_rules.cpp.
namespace emulator {

class Warp;
struct Frame;
struct MemoryAccess;
struct Participant;

/// A bit for each bit of a lane's value (up to 128); bit 0 for predicates.
using Bits = unsigned __int128;
constexpr Bits low_bits(std::uint32_t count) { return count >= 128 ? ~Bits{0} : (Bits{1} << count) - 1; }
/// All bits of a value of that many bytes; of a predicate: one.
constexpr Bits all_bits(std::uint32_t width) { return width ? low_bits(8 * width) : 1; }

/// The load that an undefined value comes from.
struct Origin {
  const Instruction* load = nullptr;
  std::uint64_t address =
      0;  ///< of the first byte never written: an offset in shared or local memory, or a global address
  std::int8_t lane = 0;
  ptx::Space space = ptx::Space::global;  ///< or shared, local
  /// The bytes may be padding of a struct: the load took written ones along, or used_bytes_mask leaves them out; in code for debugging,
  /// which copies words one by one, others of the same 16 aligned bytes were written.
  bool padding = false;
  bool computed = false;  ///< the value is not the load's any more: padding is only ever moved
};

/// The undefined bits of the lanes' values.
struct UndefinedRow {
  LaneMask lanes = 0;  ///< that have any
  std::array<Bits, warp_size> bits;
  std::array<Origin, warp_size> origin;

  Bits at(int lane) const { return lanes >> lane & 1 ? bits[static_cast<std::size_t>(lane)] : 0; }
  void set(int lane, Bits value, const Origin& from) {
    lanes = (lanes & ~(1u << lane)) | LaneMask{value != 0} << lane;
    bits[static_cast<std::size_t>(lane)] = value;
    origin[static_cast<std::size_t>(lane)] = from;
  }
};

/// What becomes of undefined bits in instructions of one opcode. Those of an opcode without a rule are reported.
struct UndefinedRule {
  std::string_view opcode;
  /// Reports, or gives the results their undefined bits, before the instruction is executed. Called when some operand has undefined
  /// bits, or the carry flag.
  void (*apply)(const UndefinedRule&, class UndefinedValues&, Warp&, const Instruction&, LaneMask);
  std::uint32_t operands = 0;  ///< a bit for each operand that the rule treats differently
};

/// All undefined values of a warp: in registers of its frames, in local memory and in parameters.
class UndefinedValues {
 public:
  bool empty() const { return rows_.empty() && memory_.empty(); }

  /// Executes an instruction and keeps the undefined bits up to date. `lanes`: those whose guard holds.
  void execute(Warp& warp, const Instruction& i, LaneMask lanes);

  /// Undefined bits of an operand; nullptr when there are none.
  const UndefinedRow* row(const Frame* frame, Slot slot) const {
    if (slot.where < 0) return nullptr;
    const auto found = rows_.find({frame, slot.where});
    return found == rows_.end() ? nullptr : &found->second;
  }
  /// The lanes' undefined bits of a result become those of the row.
  void set(const Frame* frame, Slot slot, LaneMask lanes, const UndefinedRow& row);
  void clear(const Frame* frame, Slot slot, LaneMask lanes);
  /// The carry flag.
  static constexpr Slot carry{0, 0, true};

  /// Executes an instruction that only moves bits on undefined bits in the place of values. `controls`: operands that keep their
  /// values. Returns the undefined bits of each result, by operand.
  std::array<UndefinedRow, 8> moved(Warp& warp, const Instruction& i, LaneMask lanes, std::uint32_t controls);

  /// Reports the lanes' undefined bits of an operand as used by the instruction, and takes them for defined from now on.
  void use(Warp& warp, const Instruction& i, Slot slot, LaneMask lanes);

  /// Once for each instruction of use.
  static void report_use(Warp& warp, const Instruction& i, int lane, const Origin& origin);

  /// After a load has written its results: their undefined bits.
  void load(Warp& warp, const Instruction& i, const MemoryAccess& m, bool sign, std::uint32_t register_bytes);
  /// After a store was judged: undefined bytes in shared memory count as never written again; so do those in global memory, if
  /// they may be padding of a copied struct; else they are reported.
  void store(Warp& warp, const Instruction& i, const MemoryAccess& m);
  /// Reports undefined bytes of a lane's local memory, used by a system call.
  static void use_local(Warp& warp, const Instruction& i, int lane, std::uint32_t offset,
                        std::uint32_t bytes);

  /// watch::shuffled.
  void shuffle(std::span<const Participant> participants, int to, int from,
               const std::array<std::uint8_t, warp_size>& sources, LaneMask invalid);

  /// The lanes leave the frame, or end.
  void leave(const Frame& frame, LaneMask lanes);
  void exit(LaneMask lanes);
  /// Arguments of a call, and results of a function: bytes move between parameter areas.
  void copy_parameters(const Frame* from, std::uint32_t from_offset, const Frame* to, std::uint32_t to_offset,
                       std::uint32_t bytes, LaneMask lanes);

 private:
  struct Register {
    const Frame* frame;
    std::int32_t where;
    bool operator==(const Register&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Register& r) const {
      return (reinterpret_cast<std::uintptr_t>(r.frame) + static_cast<std::uint32_t>(r.where)) *
                 0x9e37'79b9'7f4a'7c15 >>
             20;
    }
  };
  /// A byte of the lane's local memory (frame nullptr) or of its parameters in a frame.
  struct Place {
    const Frame* frame;
    int lane;
    std::uint32_t offset;
    auto operator<=>(const Place&) const = default;
  };
  struct Byte {
    std::uint8_t bits;
    Origin origin;
  };
  void use_parameters(Warp& warp, const Instruction& i, LaneMask lanes);
  void erase(const Frame* frame, int lane, std::uint64_t from, std::uint64_t to);

  std::unordered_map<Register, UndefinedRow, Hash> rows_;
  std::map<Place, Byte> memory_;
};

}  // namespace emulator
