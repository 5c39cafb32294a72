#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "checks/async_proxy.h"
#include "checks/global_shadow.h"
#include "checks/grid_clocks.h"
#include "checks/shared_shadow.h"
#include "checks/word_clocks.h"
#include "checks/word_history.h"

/// What the checks keep of a launch and of a block while they run (Launch::checks, Block::checks).
namespace emulator {

/// Happens-before among the blocks of the launch. A strong write (atomics included) of device or system scope hands on, at its
/// location, what its block has done and knows so far; a strong read of the location takes it. DESIGN.md, "Checks".
struct LaunchChecks {
  explicit LaunchChecks(std::uint64_t blocks)
      : clocks(std::min<std::uint64_t>(blocks, PackedAccess::block_mask + 1)), words(clocks) {}

  GridClocks clocks;
  std::atomic<std::uint64_t> handovers{0};  ///< counts the accesses that changed `words`
  WordClocks words;                         ///< what strong writes have handed over
};

struct BlockChecks {
  SharedShadow shared;
  std::unique_ptr<AsyncProxy> async_proxy;  ///< nullptr: nothing to check
  BlockOrder order;                         ///< among the blocks of the launch
};

}  // namespace emulator
