#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "machine/lanes.h"
#include "machine/program.h"

namespace emulator {

enum class AccessKind : std::uint8_t { load, store, atomic };

/// One memory instruction of a warp, in one address space.
struct Access {
  AccessKind kind = AccessKind::load;
  Order order = Order::weak;
  Scope scope = Scope::thread;
  bool read_only = false;    ///< ld.nc
  bool copy = false;         ///< cp.async
  bool async_proxy = false;  ///< cp.async.bulk
  bool carries =
      false;  ///< a load that takes bytes never written along (checks/undefined.h) instead of a report
  bool replaces = false;     ///< an atomic whose old value nobody uses: the bytes may never have been written
  std::uint32_t bytes = 0;   ///< a lane, vector included
  std::uint32_t used = ~0u;  ///< bit i: byte i of a lane's access matters
  /// Values to be stored: lane l's bytes begin at stored + l * stored_stride. nullptr when they are not at hand.
  const std::byte* stored = nullptr;
  std::uint32_t stored_stride = 0;
  LaneMask lanes = 0;
  std::array<std::uint64_t, warp_size>
      address;  ///< global: generic addresses; shared: offsets in shared memory
};

}  // namespace emulator
