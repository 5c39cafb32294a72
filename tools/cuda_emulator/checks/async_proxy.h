#pragma once
#include <array>
#include <cstdint>
#include <unordered_map>

#include "machine/access.h"
#include "machine/program.h"

namespace emulator {

class Warp;

/// What threads of a block have written through the generic proxy and bulk copies may read through the async proxy only after a
/// fence.proxy.async (PTX ISA 9.7.9.25, "Async proxy": accesses of one place through several proxies need a fence between
/// them). The fence may stand anywhere on the path from write to copy (PTX ISA 8, proxy-preserved base causality order): a
/// copy is reported when no thread of the block has executed a fence since the write. What other blocks wrote, and copies
/// that overwrite, are not judged.
class AsyncProxy {
 public:
  /// `space`: shared or global.
  void written(const Warp& warp, const Instruction& i, const Access& access, ptx::Space space);
  /// A copy has written the bytes.
  void copied_to(ptx::Space space, std::uint64_t address, std::uint32_t bytes);
  /// Reports a copy that reads bytes which no fence has followed.
  void copied_from(Warp& warp, const Instruction& i, int lane, ptx::Space space, std::uint64_t address,
                   std::uint32_t bytes) const;
  void fence(bool shared, bool global);

 private:
  struct Write {
    const Instruction* instruction;
    std::uint32_t thread;
  };
  /// The last write to each 16 bytes, the unit of bulk copies. A fence ends all entries.
  using Writes = std::unordered_map<std::uint64_t, Write>;
  static constexpr std::uint64_t unit = 16;

  Writes& writes(ptx::Space space) { return space == ptx::Space::shared ? shared_ : global_; }
  const Writes& writes(ptx::Space space) const { return space == ptx::Space::shared ? shared_ : global_; }

  Writes shared_, global_;
};

}  // namespace emulator
