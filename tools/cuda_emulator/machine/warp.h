#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "machine/program.h"
#include "machine/rows.h"
#include "machine/watch.h"

namespace emulator {

class Block;

/// One activation of a function for the lanes that called it together.
struct Frame {
  const Function* function = nullptr;
  Frame* caller = nullptr;
  std::uint32_t depth = 0;
  std::uint32_t return_to = 0;        ///< index in the caller's code
  const Instruction* call = nullptr;  ///< the call statement, which knows where results go
  LaneMask lanes = 0;                 ///< that have not returned yet
  std::uint32_t local_base = 0;       ///< of the function's .local variables in each lane's local memory
  std::uint32_t local_top = 0;        ///< end of what this frame and its callers may touch
  RowMemory registers;
  std::vector<std::byte> parameters;  ///< lane after lane, function->parameter_bytes each

  /// The function's memory as every frame of it begins, so that runs are alike: zeros where a read may come before a write.
  void begin(const Function& begun);
};

/// Lanes that stand at one place and run together.
struct Group {
  LaneMask lanes = 0;
  Frame* frame = nullptr;
  std::uint32_t next = 0;  ///< index of the instruction to execute next
};

/// Lanes that wait at one instruction for others.
struct Waiting {
  enum class For : std::uint8_t {
    warp,
    block
  } what;  ///< lanes of this warp (shfl, bar.warp.sync, mma ...) or a block barrier
  LaneMask lanes = 0;
  Frame* frame = nullptr;
  const Instruction* instruction = nullptr;
  LaneMask members = 0;  ///< For::warp: lanes that must come
  bool aligned = false;  ///< For::warp: at this very instruction
  void (*fire)(Warp&, std::span<const struct Participant>, LaneMask) = nullptr;  ///< For::warp
  std::uint32_t barrier = 0;                                                     ///< For::block: its number
  void (*resume)(Warp&, const struct Participant&) = nullptr;                    ///< For::block
};

/// Lanes that take part in a warp operation from one place.
struct Participant {
  const Instruction* instruction;
  Frame* frame;
  LaneMask lanes;
  template <class T>
  const T* source(int operand) const {
    const Slot slot = instruction->operands[operand];
    const std::byte* base = slot.where >= 0 ? frame->registers.data() + slot.where
                                            : frame->function->constants.data() + ~slot.where;
    return reinterpret_cast<const T*>(base);
  }
  template <class T>
  T* result(int operand) const {
    return reinterpret_cast<T*>(frame->registers.data() + instruction->operands[operand].where);
  }
};
/// Computes a warp operation once all its lanes have come. `lanes` is the union of the participants' lanes: all lanes of the
/// member mask that have not exited.
using Fire = void (*)(Warp&, std::span<const Participant>, LaneMask lanes);

/// Copies of cp.async that a warp's lanes have issued and not waited for (instructions/async_copy.cpp).
struct AsyncCopy {
  int lane;
  std::uint32_t group;                ///< number of the lane's commits before it
  std::uint32_t shared;               ///< destination: offset in shared memory
  std::uint32_t bytes, source_bytes;  ///< the rest of `bytes` becomes zero
  const std::byte* source;            ///< on the host; nullptr when source_bytes is 0
  std::array<std::byte, 16> seen;     ///< the source's contents when the copy was issued
  const Instruction* instruction;
  std::uint32_t unwritten = 0;  ///< bit i: byte i of the source was never written
};
struct AsyncCopies {
  std::vector<AsyncCopy> pending;                           ///< in order of issue
  std::array<std::uint32_t, warp_size> committed_groups{};  ///< of each lane
  /// Performs the lanes' pending copies when they exit: a copy outlives its thread. Set while there are any.
  void (*land)(Warp&, LaneMask) = nullptr;
};

/// An instruction in a loop that waits: a strong access that keeps reading the same values (instructions/memory_unit.h,
/// notice_spinning), or a wait for a phase of an mbarrier.
struct Spin {
  const Instruction* instruction = nullptr;
  std::uint64_t digest = 0;
  std::uint32_t times = 0;
  bool foreign = false;       ///< of memory that the host or another process may write
  LaneMask lanes = 0;         ///< of the last time
  std::uint64_t address = 0;  ///< of the lowest lane; offset in shared memory for an mbarrier
  std::uint64_t value = 0;    ///< that it read; of an mbarrier the parity or state that it waits for
  /// What it waits for, in words; nullptr: for another value in memory.
  std::string (*describe)(const Block&, const Spin&) = nullptr;
};

/// 32 lanes with a program counter each. Lanes at one place form a group; the group in the deepest frame with the lowest
/// program counter runs, until it waits, branches past another group, or has had its turn (DESIGN.md, "Warps").
class Warp {
 public:
  Warp(Block& block, std::uint32_t index, LaneMask lanes);
  ~Warp();

  /// Runs groups until no group can run (all lanes wait or have exited) or about `budget` instructions are executed.
  /// Returns the instructions executed.
  std::uint64_t run(std::uint64_t budget);
  bool can_run() const { return running_.lanes != 0 || !ready_.empty(); }
  bool finished() const { return alive_ == 0; }

  // For instructions: operands of the running group.
  template <class T>
  const T* source(const Instruction& i, int operand) const {
    const std::int32_t where = i.operands[operand].where;
    return reinterpret_cast<const T*>(where >= 0 ? registers_ + where : constants_ + ~where);
  }
  template <class T>
  T* result(const Instruction& i, int operand) {
    return reinterpret_cast<T*>(registers_ + i.operands[operand].where);
  }
  /// Predicates are one bit a lane.
  LaneMask predicate(const Instruction& i, int operand) const { return *source<LaneMask>(i, operand); }
  void set_predicate(const Instruction& i, int operand, LaneMask lanes, LaneMask value) {
    LaneMask& row = *result<LaneMask>(i, operand);
    row = (row & ~lanes) | (value & lanes);
  }
  /// Addresses of a memory instruction: row of the address operand plus displacement. `bytes`: width of the row (4 or 8).
  void addresses(const Instruction& i, int operand, std::uint32_t bytes, LaneMask lanes,
                 std::array<std::uint64_t, warp_size>& out) const;

  // Control flow, for instructions/control.cpp.
  void branch(LaneMask taken, std::uint32_t target);
  /// Calls the function for the lanes: a new frame, to which arguments are copied by the caller of this function.
  Frame& call(const Instruction& i, const Function& function, LaneMask lanes);
  void leave(LaneMask lanes);  ///< ret: back to the frame's caller; in a kernel: exit
  void exit(LaneMask lanes);
  /// Lets other groups, warps and blocks go first: nanosleep.
  void yield() { wants_yield_ = true; }
  /// The same for lanes that wait for what other threads do: failed try_wait, a spinning load.
  void wait() { wants_yield_ = waits_ = true; }
  /// The same, and the group executes the instruction again.
  void wait_at(const Instruction& i) {
    running_.next = i.index;
    spin_of(i).lanes = running_.lanes;
    wait();
  }
  bool take_yield() { return std::exchange(yielded_, false); }
  /// Whether all that the warp has done lately is to wait for other threads.
  bool waits() const { return since_wait_ < short_while; }

  /// A warp operation of the running group: `lanes` execute it and wait until all lanes of `members` that have not exited
  /// wait at such an operation (same Execute, same detail, same members; with `aligned` at the very same instruction). Then `fire` runs and
  /// the lanes go on. Lanes with different member masks must come in separate calls. A lane outside of its own mask is an error of the
  /// program, which the caller has reported.
  void meet(const Instruction& i, LaneMask lanes, LaneMask members, Fire fire, bool aligned = false);
  /// For a Fire of a block barrier (members all_lanes): the lanes do not go on but wait until the block completes the barrier; then
  /// `resume`, if given, is called for each place from which lanes came (results of bar.red), and they go on. Call before Block::arrive.
  using Resume = void (*)(Warp&, const Participant&);
  void hold_at_barrier(std::uint32_t barrier, Resume resume = nullptr);
  /// Lets lanes that wait at the barrier go on (called by the block when the barrier is complete).
  void release_from_barrier(std::uint32_t barrier);

  Block& block() { return block_; }
  const Block& block() const { return block_; }
  Frame& frame() { return *running_.frame; }
  LaneMask group() const { return running_.lanes; }  ///< lanes of the running group
  LaneMask alive() const { return alive_; }          ///< lanes that have not exited
  std::uint32_t index() const { return index_; }     ///< in the block
  std::uint32_t thread(int lane) const { return index_ * warp_size + static_cast<std::uint32_t>(lane); }
  const std::vector<Waiting>& waiting() const { return waiting_; }
  /// The groups that can run, the running one first.
  std::vector<Group> groups() const;

  /// Local memory of a lane: bytes [0, local_top) are mapped. nullptr when address..address+bytes is not.
  std::byte* local(int lane, std::uint64_t address, std::uint32_t bytes);
  /// A mark for each byte of a lane's local memory from the address on: 0 where nobody has written since the byte became the
  /// variable's. Maintained only with checks.
  std::uint8_t* local_written(int lane, std::uint64_t address) {
    return local_written_.data() + static_cast<std::size_t>(lane) * local_capacity_ + address;
  }
  /// alloca: `bytes` more local memory in every lane until the running frame ends; returns the address.
  std::uint32_t local_alloca(std::uint32_t bytes, std::uint32_t alignment);

  LaneMask carry = 0;  ///< CC.CF of each lane (add.cc ...)

  std::array<Spin, 8> spins;  ///< see spin_of
  /// The entry of the instruction, fresh if there was none. It lies at the front from now on.
  Spin& spin_of(const Instruction& i);
  AsyncCopies copies;

  /// Undefined bits of the lanes' values (checks/undefined.h); nullptr while there are none.
  UndefinedValues* undefined() const { return undefined_.get(); }
  UndefinedValues& track_undefined();

  /// State of memory ordering, kept here for the checks (checks/shared_shadow.h, checks/global_shadow.h).
  LaneMask dirty = 0;   ///< lanes with writes to global memory since their last fence
  LaneMask fenced = 0;  ///< lanes whose last fence came after their last write and their last barrier

 private:
  friend class Block;
  friend class UndefinedValues;
  void switch_group();
  void rotate();
  void merge(Group group);
  void fire_now(std::span<const Participant> participants, LaneMask lanes, Fire fire);
  void release_frame(Frame* frame);
  void local_reserve(std::uint32_t bytes);
  void forget_local(LaneMask lanes, std::uint32_t from, std::uint32_t to);
  void report_stuck();
  void try_fire();
  void set_running(const Group& group);

  Block& block_;
  std::uint32_t index_;
  LaneMask alive_, initial_ = alive_;
  Group running_;
  std::byte* registers_ = nullptr;
  const std::byte* constants_ = nullptr;
  std::uint32_t limit_ = ~0u;  ///< index at which another ready group of this frame stands
  bool reschedule_ = false, wants_yield_ = false, yielded_ = false;
  static constexpr std::uint64_t short_while = 512;
  bool waits_ = false;                      ///< a group waits, and no other one has run for long since
  std::uint32_t fruitless_ = 0;             ///< groups that have yielded one after the other
  std::uint64_t since_wait_ = short_while;  ///< instructions since all groups waited
  std::uint32_t backward_branches_ = 0;
  std::vector<Group> ready_;
  std::vector<Waiting> waiting_;
  std::span<const Participant> firing_;  ///< while a Fire runs
  bool held_ = false;                    ///< the last Fire called hold_at_barrier
  std::vector<std::unique_ptr<Frame>> frames_, free_frames_;
  Watched<UndefinedValues> undefined_;
  std::vector<std::byte> local_;             ///< lane after lane
  std::vector<std::uint8_t> local_written_;  ///< the same places
  std::uint32_t local_capacity_ = 0;
};

}  // namespace emulator
