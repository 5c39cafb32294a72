#include "instructions/decoders.h"
#include "instructions/meeting.h"
#include "machine/block.h"
#include "machine/watch.h"

// Barriers of a block and of a warp (PTX ISA 9.7.13.1, 9.7.13.2). A warp arrives at a block barrier as a whole: its
// lanes meet first, then the block counts the warp.
namespace emulator {
namespace {

// Operands: barrier, threads (0: all of the block); reductions: predicate, its negation, d.
constexpr int barrier_operand = 0, threads_operand = 1, predicate_operand = 2, result_operand = 4;
constexpr std::uint32_t barriers = 16;

[[noreturn]] void fail(Warp& warp, int lane, const Instruction& i, const std::string& message) {
  report(Severity::error, "barrier", message, {&warp, lane, &i});
  throw KernelFault{719};
}

/// The operand's value, which must be the same in all lanes.
std::uint32_t uniform(Warp& warp, std::span<const Participant> participants, LaneMask lanes, int operand,
                      const char* what) {
  const auto values = gather<std::uint32_t>(participants, operand);
  const std::uint32_t value = values[lowest(lanes)];
  for_lanes(lanes, [&](int lane) {
    if (values[lane] != value)
      fail(warp, lane, *participants[0].instruction,
           "lanes of one warp name different " + std::string(what) + ": " + std::to_string(value) + " and " +
               std::to_string(values[lane]));
  });
  return value;
}

template <BarrierUse use>
void resume(Warp& warp, const Participant& p) {
  const std::uint32_t barrier = p.source<std::uint32_t>(barrier_operand)[lowest(p.lanes)];
  const std::uint32_t value = warp.block().reduction(barrier);
  if constexpr (use == BarrierUse::reduce_popc) {
    std::uint32_t* d = p.result<std::uint32_t>(result_operand);
    for_lanes(p.lanes, [&](int lane) { d[lane] = value; });
  } else {
    LaneMask& d = *p.result<LaneMask>(result_operand);
    d = value ? d | p.lanes : d & ~p.lanes;
  }
}

template <BarrierUse use>
void arrive(Warp& warp, std::span<const Participant> participants, LaneMask lanes) {
  constexpr bool reduction = use != BarrierUse::sync && use != BarrierUse::arrive;
  const Instruction& i = *participants[0].instruction;
  const std::uint32_t barrier = uniform(warp, participants, lanes, barrier_operand, "barriers");
  const std::uint32_t threads = uniform(warp, participants, lanes, threads_operand, "thread counts");
  if (barrier >= barriers)
    fail(warp, lowest(lanes), i,
         "barrier " + std::to_string(barrier) + " of a block that has barriers 0 to 15");
  if (threads % warp_size != 0)
    fail(warp, lowest(lanes), i,
         "barrier " + std::to_string(barrier) + " with a count of " + std::to_string(threads) +
             " threads, which is no multiple of the warp's 32");
  if (use == BarrierUse::arrive && threads == 0)
    fail(warp, lowest(lanes), i,
         "arrival at barrier " + std::to_string(barrier) + " with a count of 0 threads");
  LaneMask predicate = 0;
  if constexpr (reduction) predicate = gather_predicate(participants, predicate_operand);
  if constexpr (use != BarrierUse::arrive) warp.hold_at_barrier(barrier, reduction ? resume<use> : nullptr);
  warp.block().arrive(warp, barrier, threads, use, predicate, i);
}

template <BarrierUse use, bool aligned>
void execute(Warp& warp, const Instruction& i, LaneMask lanes) {
  warp.meet(i, lanes, all_lanes, arrive<use>, aligned);
}

template <BarrierUse use>
Execute executor(bool aligned) {
  return aligned ? execute<use, true> : execute<use, false>;
}

/// Operands: members. Orders the memory accesses of the lanes.
void warp_barrier(Warp& warp, std::span<const Participant>, LaneMask lanes) { watch::warp_sync(warp, lanes); }

Execute decode_warp_barrier(Form& form) {
  if (!form.take("sync")) form.unknown("bar.warp needs .sync");
  form.source(0, ptx::Type::b32);
  return meet_members<warp_barrier, 0>;
}

}  // namespace

Execute decode_bar(Form& form) {
  using enum ptx::Type;
  form.instruction().kind = InstructionClass::barrier;
  const bool bar = form.statement().opcode == "bar";
  if (bar && form.take("warp")) return decode_warp_barrier(form);
  form.take("cta");
  const bool aligned = bar || form.take("aligned");
  const auto use = form.take_one_of({"sync", "arrive", "red"});
  const bool reduction = use == "red";
  const std::size_t first = reduction ? 1 : 0;  // operand of the barrier's number
  const std::size_t counted = first + (reduction ? 3 : 2);
  const bool has_count = form.operand_count() == counted;
  if (!has_count && form.operand_count() + 1 != counted) form.unknown("wrong number of operands");
  if (use == "arrive" && !has_count) form.unknown("arrive needs a thread count");
  form.source(first, u32);
  if (has_count) {
    form.source(first + 1, u32);
  } else {
    form.constant(u32, 0);
  }
  if (use == "sync") return executor<BarrierUse::sync>(aligned);
  if (use == "arrive") return executor<BarrierUse::arrive>(aligned);
  if (!reduction) form.unknown("needs .sync, .arrive or .red");

  const auto operation = form.take_one_of({"popc", "and", "or"});
  source_with_negation(form, form.operand_count() - 1);
  if (operation == "popc") {
    form.take_type({u32});
    form.result(0, u32);
    return executor<BarrierUse::reduce_popc>(aligned);
  }
  form.take_type({pred});
  form.result_predicate(0);
  if (operation == "and") return executor<BarrierUse::reduce_and>(aligned);
  if (operation == "or") return executor<BarrierUse::reduce_or>(aligned);
  form.unknown("a barrier reduction is .popc, .and or .or");
}

}  // namespace emulator
