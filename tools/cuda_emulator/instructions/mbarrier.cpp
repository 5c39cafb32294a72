#include "instructions/mbarrier.h"

#include <bit>
#include <cstring>

#include "instructions/async_copy.h"
#include "instructions/decoders.h"
#include "instructions/elementwise.h"
#include "instructions/memory_unit.h"
#include "machine/block.h"
#include "machine/launch.h"
#include "machine/report.h"
#include "machine/watch.h"

// Barrier objects in shared memory (PTX ISA 9.7.13.15). A block runs on one host thread, so nothing here has to be indivisible.
namespace emulator {
namespace {

using ptx::Type;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 largest_count = (1u << 20) - 1;

/// The contents of a barrier object, and of the state that an arrival returns (the contents before the arrival).
struct Barrier {
  u32 expected;  ///< arrivals of each phase
  u32 pending;   ///< arrivals that are missing in this phase
  int awaited;  ///< tx-count: bytes of asynchronous copies that are missing; below zero when they came before they were expected
  u32 phase;    ///< number of the phase, modulo 4
  bool live;    ///< false in memory that holds no barrier object, as far as one bit can tell

  // 20 bits each for the arrivals, 21 for the bytes, 2 for the phase, and the highest for `live`. The pattern of memory never written
  // is not live.
  static Barrier unpack(u64 word) {
    return {static_cast<u32>(word) & largest_count, static_cast<u32>(word >> 20) & largest_count,
            static_cast<int>(static_cast<std::int64_t>(word << 3) >> 43), static_cast<u32>(word >> 61) & 3,
            (word >> 63) != 0};
  }
  u64 pack() const {
    return u64{expected} | u64{pending} << 20 | (static_cast<u64>(awaited) & 0x1fffff) << 40 |
           u64{phase} << 61 | u64{live} << 63;
  }
  void end_phase_when_complete() {
    if (pending != 0 || awaited != 0) return;
    phase = (phase + 1) & 3;
    pending = expected;
  }
};

[[noreturn]] void fail(Warp& warp, const Instruction& i, int lane, const std::string& why) {
  report(Severity::error, "mbarrier", why, {&warp, lane, &i});
  throw KernelFault{719};
}

Barrier live_barrier(Warp& warp, const Instruction& i, int lane, u64 word) {
  const Barrier barrier = Barrier::unpack(word);
  if (!barrier.live)
    fail(warp, i, lane,
         "the memory holds no barrier object: mbarrier.init is missing, or mbarrier.inval came before");
  return barrier;
}

void arrive(Warp& warp, const Instruction& i, int lane, Barrier& barrier, u32 count) {
  if (count == 0 || count > barrier.pending)
    fail(warp, i, lane,
         std::to_string(count) + " arrivals where " + std::to_string(barrier.pending) + " of " +
             std::to_string(barrier.expected) + " are missing in the phase");
  barrier.pending -= count;
}

void await(Warp& warp, const Instruction& i, int lane, Barrier& barrier, std::int64_t bytes) {
  const std::int64_t sum = barrier.awaited + bytes;
  if (sum > static_cast<int>(largest_count) || sum < -static_cast<int>(largest_count))
    fail(warp, i, lane,
         "the barrier object would await " + std::to_string(sum) + " bytes, beyond the limit of 2^20 - 1");
  barrier.awaited = static_cast<int>(sum);
}

// Instruction.detail: flags, and above them the bytes of the address register.
enum Flag : u64 { expects = 1, drops = 2, no_complete = 4, relaxed = 8, parity = 16, completes = 32 };
constexpr int address_bytes_shift = 8;

/// Opens the 8 bytes of each lane's barrier object. All operations on it are strong ones of the block.
struct BarrierAccess : MemoryAccess {
  BarrierAccess(AccessKind kind, Order order, Warp& warp, const Instruction& i, LaneMask lanes, int operand)
      : MemoryAccess(kind, i, lanes) {
    access.bytes = sizeof(u64);
    access.order = order;
    access.scope = Scope::block;
    warp.addresses(i, operand, static_cast<u32>(i.detail >> address_bytes_shift), lanes, access.address);
    open(warp, i, i.memory.space);
    if (lanes & ~shared) {
      report(Severity::error, "wrong-window", "a barrier object must lie in shared memory",
             {&warp, std::countr_zero(lanes & ~shared), &i});
      throw KernelFault{717};
    }
  }
  u64 word(int lane) const {
    u64 value;
    std::memcpy(&value, host[static_cast<std::size_t>(lane)], sizeof value);
    return value;
  }
  void set_word(int lane, u64 value) {
    std::memcpy(host[static_cast<std::size_t>(lane)], &value, sizeof value);
  }
  u32 offset(int lane) const { return static_cast<u32>(access.address[static_cast<std::size_t>(lane)]); }
};

void execute_init(Warp& warp, const Instruction& i, LaneMask lanes) {
  BarrierAccess m(AccessKind::store, Order::weak, warp, i, lanes, 0);
  const u32* count = warp.source<u32>(i, 1);
  for_lanes(lanes, [&](int lane) {
    if (count[lane] == 0 || count[lane] > largest_count)
      fail(warp, i, lane,
           "mbarrier.init with " + std::to_string(count[lane]) + " arrivals, not 1 to 2^20 - 1");
    m.set_word(lane, Barrier{count[lane], count[lane], 0, 0, true}.pack());
  });
  m.close(warp, i);
}

// A strong access, unlike init: the destructor of cuda::pipeline invalidates when an atomic counter says that all warps have come,
// while lanes of one warp are ordered by a match only.
void execute_inval(Warp& warp, const Instruction& i, LaneMask lanes) {
  BarrierAccess m(AccessKind::store, Order::relaxed, warp, i, lanes, 0);
  for_lanes(lanes, [&](int lane) {
    live_barrier(warp, i, lane, m.word(lane));
    m.set_word(lane, 0);
  });
  m.close(warp, i);
}

/// arrive and arrive_drop. Operands: the state, the address, the number of arrivals or (flag `expects`) of bytes.
void execute_arrive(Warp& warp, const Instruction& i, LaneMask lanes) {
  BarrierAccess m(AccessKind::atomic, Order::relaxed, warp, i, lanes, 1);
  u64* state = warp.result<u64>(i, 0);
  const u32* operand = warp.source<u32>(i, 2);
  for_lanes(lanes, [&](int lane) {
    const u64 before = m.word(lane);
    Barrier barrier = live_barrier(warp, i, lane, before);
    const u32 count = i.detail & expects ? 1 : operand[lane];
    if (i.detail & expects) await(warp, i, lane, barrier, operand[lane]);
    arrive(warp, i, lane, barrier, count);
    if (i.detail & drops) barrier.expected -= count;
    if (i.detail & no_complete && barrier.pending == 0 && barrier.awaited == 0)
      fail(warp, i, lane, "an arrival with .noComplete completes the phase");
    barrier.end_phase_when_complete();
    if (!(i.detail & relaxed)) watch::release(warp, lane, m.offset(lane));
    m.set_word(lane, barrier.pack());
    state[lane] = before;
  });
  m.close(warp, i);
}

/// expect_tx and (flag `completes`) complete_tx. Operands: the address, the bytes.
void execute_transaction(Warp& warp, const Instruction& i, LaneMask lanes) {
  BarrierAccess m(AccessKind::atomic, Order::relaxed, warp, i, lanes, 0);
  const u32* bytes = warp.source<u32>(i, 1);
  for_lanes(lanes, [&](int lane) {
    Barrier barrier = live_barrier(warp, i, lane, m.word(lane));
    await(warp, i, lane, barrier,
          i.detail & completes ? -std::int64_t{bytes[lane]} : std::int64_t{bytes[lane]});
    if (i.detail & completes) barrier.end_phase_when_complete();
    m.set_word(lane, barrier.pack());
  });
  m.close(warp, i);
}

/// "a phase of parity 0, where 1 of 4 arrivals are missing and 256 bytes of copies"
std::string describe(const Barrier& barrier) {
  std::string text = "a phase of parity " + std::to_string(barrier.phase & 1) + ", where " +
                     std::to_string(barrier.pending) + " of " + std::to_string(barrier.expected) +
                     " arrivals are missing";
  if (barrier.awaited > 0) text += " and " + std::to_string(barrier.awaited) + " bytes of copies";
  if (barrier.awaited < 0)
    text += " and " + std::to_string(-barrier.awaited) + " bytes of copies have come that nobody expected";
  return text;
}

/// What a test_wait or try_wait waits for (Spin::describe).
std::string describe_wait(const Block& block, const Spin& spin) {
  u64 word;
  std::memcpy(&word, block.shared() + spin.address, sizeof word);
  const u64 awaited = spin.instruction->detail & parity ? spin.value : Barrier::unpack(spin.value).phase;
  return "the end of a phase of parity " + std::to_string(awaited & 1) + " of the barrier object at byte " +
         std::to_string(spin.address) + " of shared memory, which is in " + describe(Barrier::unpack(word));
}

/// test_wait and try_wait. Operands: the result, the address, the state or the parity of the phase waited for.
void execute_wait(Warp& warp, const Instruction& i, LaneMask lanes) {
  BarrierAccess m(AccessKind::load, Order::relaxed, warp, i, lanes, 1);
  LaneMask complete = 0;
  for_lanes(lanes, [&](int lane) {
    const Barrier barrier = live_barrier(warp, i, lane, m.word(lane));
    const bool done = i.detail & parity
                          ? (warp.source<u32>(i, 2)[lane] & 1) != (barrier.phase & 1)
                          : Barrier::unpack(warp.source<u64>(i, 2)[lane]).phase != barrier.phase;
    if (!done) return;
    complete |= LaneMask{1} << lane;
    if (!(i.detail & relaxed)) watch::acquire(warp, lane, m.offset(lane));
  });
  m.close(warp, i);
  warp.set_predicate(i, 0, lanes, complete);
  if (const LaneMask left = lanes & ~complete) {
    const int lane = std::countr_zero(left);
    Spin& spin = warp.spin_of(i);
    spin.lanes = left;
    spin.address = m.offset(lane);
    spin.value = i.detail & parity ? warp.source<u32>(i, 2)[lane] : warp.source<u64>(i, 2)[lane];
    spin.describe = describe_wait;
    warp.wait();
  }
}

/// The thread's copies land now, so the arrival happens now. Without .noinc the barrier's pending count is raised by the same one first.
void execute_copy_arrival(Warp& warp, const Instruction& i, LaneMask lanes) {
  land_copies(warp, lanes);
  BarrierAccess m(AccessKind::atomic, Order::relaxed, warp, i, lanes, 0);
  for_lanes(lanes, [&](int lane) {
    Barrier barrier = live_barrier(warp, i, lane, m.word(lane));
    if (i.detail & drops) {
      arrive(warp, i, lane, barrier, 1);
      barrier.end_phase_when_complete();
    }
    watch::release(warp, lane, m.offset(lane));
    m.set_word(lane, barrier.pack());
  });
  m.close(warp, i);
}

/// .shared, .shared::cta, or none for a generic address. A cluster is one block here, so .shared::cluster means the same.
void take_space(Form& form) {
  const bool shared = !form.take_one_of({"shared", "shared::cta", "shared::cluster"}).empty();
  form.instruction().memory.space = shared ? ptx::Space::shared : ptx::Space::none;
}

/// .sem.scope: `ordering` is the order that is meant when none is named.
void take_order(Form& form, std::string_view ordering) {
  if (form.take("relaxed"))
    form.instruction().detail |= relaxed;
  else
    form.take(ordering);
  form.take_one_of({"cta", "cluster"});
}

void address(Form& form, std::size_t operand) {
  form.address(operand);
  form.instruction().detail |= u64{form.address_bytes()} << address_bytes_shift;
}

Execute decode_arrive(Form& form) {
  u64& detail = form.instruction().detail;
  if (form.take("expect_tx")) detail |= expects;
  if (form.take("noComplete")) detail |= no_complete;
  take_order(form, "release");
  form.result(0, Type::b64);
  address(form, 1);
  if (form.operand_count() > 2) {
    form.source(2, Type::u32);
  } else if (detail & (expects | no_complete)) {
    form.unknown("no count");
  } else {
    form.constant(Type::u32, 1);
  }
  return execute_arrive;
}

Execute decode_wait(Form& form) {
  u64& detail = form.instruction().detail;
  if (form.take("parity")) detail |= parity;
  take_order(form, "acquire");
  form.result_predicate(0);
  address(form, 1);
  form.source(2, detail & parity ? Type::u32 : Type::b64);
  if (form.operand_count() > 3) form.source(3, Type::u32);  // a limit of time: a wait may return at any time
  return execute_wait;
}

}  // namespace

Execute decode_mbarrier(Form& form) {
  Instruction& i = form.instruction();
  i.kind = InstructionClass::barrier;
  form.take_type({Type::b64});
  if (form.take("pending_count")) {
    form.result(0, Type::u32);
    form.source(1, Type::b64);
    return elementwise<u32, u64>([](u64 state) { return Barrier::unpack(state).pending; });
  }
  take_space(form);
  if (form.take("init")) {
    address(form, 0);
    form.source(1, Type::u32);
    return execute_init;
  }
  if (form.take("inval")) {
    address(form, 0);
    return execute_inval;
  }
  if (form.take("arrive")) return decode_arrive(form);
  if (form.take("arrive_drop")) {
    i.detail |= drops;
    return decode_arrive(form);
  }
  if (form.take("test_wait") || form.take("try_wait")) return decode_wait(form);
  const bool completing = form.take("complete_tx");
  if (!completing && !form.take("expect_tx")) form.unknown("no operation of mbarrier");
  if (completing) i.detail |= completes;
  take_order(form, "relaxed");
  address(form, 0);
  form.source(1, Type::u32);
  return execute_transaction;
}

Execute decode_copy_arrival(Form& form) {
  Instruction& i = form.instruction();
  i.kind = InstructionClass::async_copy;
  if (!form.take("arrive")) form.unknown("no arrival");
  form.take_type({Type::b64});
  take_space(form);
  if (form.take("noinc")) i.detail |= drops;
  address(form, 0);
  return execute_copy_arrival;
}

void complete_transaction(Warp& warp, const Instruction& i, int lane, u32 offset, u32 bytes) {
  std::byte* place = warp.block().shared() + offset;
  u64 word;
  std::memcpy(&word, place, sizeof word);
  Barrier barrier = live_barrier(warp, i, lane, word);
  await(warp, i, lane, barrier, -std::int64_t{bytes});
  barrier.end_phase_when_complete();
  watch::release(warp, lane, offset);
  word = barrier.pack();
  std::memcpy(place, &word, sizeof word);
  warp.block().made_progress();
}

}  // namespace emulator
