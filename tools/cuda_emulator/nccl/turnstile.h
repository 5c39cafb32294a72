#pragma once
#include <algorithm>
#include <deque>

namespace emulator::nccl {

class Unit;

/// Lets units in one at a time, in the order in which they came to wait. A unit that never waited (of a graph) gets in whenever nobody
/// is inside. Guarded by turnstile_mutex() of unit.cpp.
struct Turnstile {
  std::deque<Unit*> waiting;
  Unit* inside = nullptr;

  bool admits(const Unit* unit, bool waits) const {
    return !inside && (!waits || (!waiting.empty() && waiting.front() == unit));
  }
  void enter(Unit* unit, bool waits) {
    if (waits) waiting.pop_front();
    inside = unit;
  }
  void remove(const Unit* unit) {
    if (inside == unit) inside = nullptr;
    std::erase(waiting, unit);
  }
};

}  // namespace emulator::nccl
