#pragma once
#include <string_view>

#include "machine/warp.h"

namespace emulator {

/// A read-only register that the hardware supplies (PTX ISA 10).
struct SpecialRegister {
  std::string_view name;  ///< "%tid.x"
  ptx::Type type;         ///< u32 or u64
  bool uniform;           ///< one value for all lanes of a warp, read once
  std::uint64_t (*value)(Warp& warp, std::uint32_t lane);

  /// Writes the lanes' values to a row of the type.
  void read(Warp& warp, void* row, LaneMask lanes) const;
};
/// nullptr when there is no such register.
const SpecialRegister* find_special_register(std::string_view name);

}  // namespace emulator
