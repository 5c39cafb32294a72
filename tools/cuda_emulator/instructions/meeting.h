#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>

#include "instructions/form.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "machine/warp.h"

/// Instructions that the lanes of a warp execute together: their operands as the values of the whole warp, whichever
/// places in the code the lanes came from.
namespace emulator {

/// One value of each lane.
template <class T>
using Values = std::array<T, warp_size>;

/// The lowest lane of a mask that is not empty.
inline int lowest(LaneMask lanes) { return std::countr_zero(lanes) % warp_size; }

/// The source operand of all participants. Lanes that do not take part hold zero.
template <class T>
Values<T> gather(std::span<const Participant> participants, int operand) {
  Values<T> values;
  if (participants[0].lanes == all_lanes) {
    std::memcpy(values.data(), participants[0].source<T>(operand), sizeof values);
    return values;
  }
  values = {};
  for (const Participant& p : participants) {
    const T* row = p.source<T>(operand);
    for_lanes(p.lanes, [&](int lane) { values[lane] = row[lane]; });
  }
  return values;
}

/// The predicate operand of all participants, with the row after it as what negates it (see source_with_negation).
inline LaneMask gather_predicate(std::span<const Participant> participants, int operand) {
  LaneMask predicate = 0;
  for (const Participant& p : participants)
    predicate |= p.lanes & (*p.source<LaneMask>(operand) ^ *p.source<LaneMask>(operand + 1));
  return predicate;
}

template <class T>
void scatter(std::span<const Participant> participants, int operand, const Values<T>& values) {
  for (const Participant& p : participants) {
    T* row = p.result<T>(operand);
    if (p.lanes == all_lanes)
      std::memcpy(row, values.data(), sizeof values);
    else
      for_lanes(p.lanes, [&](int lane) { row[lane] = values[lane]; });
  }
}

inline void scatter_predicate(std::span<const Participant> participants, int operand, LaneMask value) {
  for (const Participant& p : participants) {
    LaneMask& row = *p.result<LaneMask>(operand);
    row = (row & ~p.lanes) | (value & p.lanes);
  }
}

/// The addresses of all participants: the row of the address operand, `bytes` (4 or 8) wide, plus displacement.
inline Values<std::uint64_t> gather_addresses(std::span<const Participant> participants, int operand,
                                              std::uint32_t bytes) {
  Values<std::uint64_t> addresses{};
  for (const Participant& p : participants) {
    const auto displacement = static_cast<std::uint64_t>(p.instruction->displacement);
    for_lanes(p.lanes, [&](int lane) {
      addresses[lane] =
          bytes == 4 ? static_cast<std::uint32_t>(p.source<std::uint32_t>(operand)[lane] + displacement)
                     : p.source<std::uint64_t>(operand)[lane] + displacement;
    });
  }
  return addresses;
}

/// Appends two slots: a predicate, and a constant that is true in all lanes where the predicate is written "!p".
/// Negation as an operand lets "vote p" and "vote !p" meet.
inline void source_with_negation(Form& form, std::size_t operand) {
  bool negated = false;
  form.source_predicate(operand, negated);
  form.constant(ptx::Type::pred, negated);
}

/// Lanes meet those that their member masks name: the last operand of `.sync` instructions, here at index `mask`. A
/// lane that its own mask does not name ends the kernel (PTX leaves open what happens).
template <Fire fire, int mask>
void meet_members(Warp& warp, const Instruction& i, LaneMask lanes) {
  Values<std::uint32_t> members;
  std::copy_n(warp.source<std::uint32_t>(i, mask), warp_size, members.begin());
  while (lanes) {
    const LaneMask wanted = members[lowest(lanes)];
    LaneMask same = 0;
    for_lanes(lanes, [&](int lane) { same |= LaneMask{members[lane] == wanted} << lane; });
    if (const LaneMask outside = same & ~wanted) {
      char text[16];
      std::snprintf(text, sizeof text, "0x%08x", wanted);
      report(Severity::error, "member-mask",
             "lane " + std::to_string(lowest(outside)) + " executes " + i.statement->opcode +
                 " with the member mask " + text + ", which does not name the lane itself",
             {&warp, lowest(outside), &i});
      throw KernelFault{719};
    }
    lanes &= ~same;
    warp.meet(i, same, wanted, fire);
  }
}

/// All lanes of the warp meet at one `.aligned` instruction.
template <Fire fire>
void meet_warp(Warp& warp, const Instruction& i, LaneMask lanes) {
  warp.meet(i, lanes, all_lanes, fire, true);
}

/// Matrix instructions need all 32 lanes: reports lanes that have exited (PTX leaves the result open; theirs count as
/// zeros here).
inline void expect_whole_warp(Warp& warp, std::span<const Participant> participants, LaneMask lanes) {
  if (lanes == all_lanes) return;
  const Instruction& i = *participants[0].instruction;
  report(Severity::error, "partial-warp",
         i.statement->opcode + " needs all 32 lanes of the warp, but lane " +
             std::to_string(std::countr_one(lanes)) + " has exited or does not exist",
         {&warp, lowest(lanes), &i});
}

}  // namespace emulator
