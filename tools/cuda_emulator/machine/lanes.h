#pragma once
#include <bit>
#include <cstdint>

namespace emulator {

constexpr int warp_size = 32;
/// Bit l stands for lane l of a warp.
using LaneMask = std::uint32_t;
constexpr LaneMask all_lanes = ~LaneMask{0};

/// Calls f(lane) for every lane of the mask, in order. A full mask becomes a plain loop, which the compiler vectorises.
template <class F>
inline void for_lanes(LaneMask mask, F&& f) {
  if (mask == all_lanes) {
    for (int lane = 0; lane < warp_size; ++lane) f(lane);
  } else {
    for (; mask; mask &= mask - 1) f(std::countr_zero(mask));
  }
}

}  // namespace emulator
