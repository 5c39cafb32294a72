#pragma once
#include <cstdint>
#include <memory>

#include "machine/access.h"
#include "machine/lanes.h"

namespace emulator {

class ThreadHistory;
class Warp;
struct Instruction;

/// What is known of each word of a block's shared memory: who wrote and read it last and when, which bytes were ever
/// written, which are the target of a cp.async that nobody has waited for.
///
/// Two accesses of different threads to one byte, at least one of them a write, race unless a synchronisation lies between
/// them: a block barrier, bar.warp.sync, a handover through a strong access with a fence before it, a barrier object.
/// Strong accesses and atomics do not race with each other. Shuffles, votes and matrix instructions order nothing
/// (PTX ISA 8; DESIGN.md, "Checks").
///
/// Time is counted for each warp and rises whenever lanes of the warp hand their accesses on. A thread knows of every other
/// thread the time up to which that thread's accesses happened before its own next one. Nearly all knowledge is common to
/// the warps on both sides (block barriers, full bar.warp.sync); the rest is kept for single lanes.
class SharedShadow {
 public:
  /// `bytes`: shared memory with its reserved part, which is not judged. Nothing is kept when checks are off.
  SharedShadow(std::uint32_t bytes, std::uint32_t threads);
  ~SharedShadow();

  /// Judges an access before it happens, reports what is wrong and records it. Returns whether the access carries bytes that
  /// were never written (Access::carries); others that read such bytes are reported.
  bool access(Warp& warp, const Instruction& i, const Access& access);

  /// Of the `bytes` (at most 32) from an offset on: bit i: byte i was never written.
  std::uint32_t unwritten(std::uint32_t address, std::uint32_t bytes) const;
  /// The same bytes count as never written again: a store or copy has put undefined values there.
  void forget_written(std::uint32_t address, std::uint32_t mask);

  /// Lanes of the warp have synchronised with each other (bar.warp.sync).
  void warp_sync(std::uint32_t warp, LaneMask lanes);
  /// The warp arrives at a block barrier, whether it waits there or not.
  void arrive(std::uint32_t barrier, std::uint32_t warp);
  /// The barrier is complete: the warps of `waiting` go on and know what all knew that arrived. `all`: it is one of all
  /// threads, for which those that have ended count as arrived.
  void complete(std::uint32_t barrier, std::uint32_t waiting, bool all);
  /// The lanes end.
  void exited(std::uint32_t warp, LaneMask lanes);

  /// fence or membar by the lanes: their next strong writes hand on what they did before it.
  void fence(std::uint32_t warp, LaneMask lanes);
  /// A handover through an object in shared memory (mbarrier): what the lane did before, to those who acquire later.
  void release(std::uint32_t warp, int lane, std::uint32_t address);
  void acquire(std::uint32_t warp, int lane, std::uint32_t address);

  /// The accesses of the block's threads to global memory, in the same order. Only while checks are on.
  ThreadHistory& global_threads();

  /// Strong accesses to global memory hand over too, among the threads of the block: a write, before it can be seen,
  /// what its lanes have done before a fence (or by its own .release); a read, after it, takes what was handed over there.
  void global_write(const Warp& warp, const Access& access);
  void global_read(const Warp& warp, const Access& access);
  /// Whether threads of the block have handed over anything in global memory. Other blocks may hand it on at other places: lanes that
  /// take over from other blocks know all of it.
  bool has_releases() const;
  void acquire_releases(const Warp& warp, LaneMask lanes);

  /// cp.async: the bytes will be written by the thread at some time before it has waited ...
  void copy_started(Warp& warp, const Instruction& i, int lane, std::uint32_t address, std::uint32_t bytes);
  /// ... and are written now.
  void copy_landed(Warp& warp, const Instruction& i, int lane, std::uint32_t address, std::uint32_t bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace emulator
