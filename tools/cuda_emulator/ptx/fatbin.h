#pragma once
#include <string>
#include <vector>

namespace emulator::ptx {

/// The PTX texts that a fat binary wrapper (what __cudaRegisterFatBinary gets) holds, with the architecture
/// of each.
struct PtxText {
  int architecture;    ///< 90 for compute_90
  bool exact = false;  ///< compute_90a: runs on that architecture only
  std::string text;
};
/// Walks wrapper, fatbin and entries; decompresses zstd payloads. For each translation unit (fatbin) the
/// texts of its architectures up to 9.0, without the NUL characters at their ends; cubins and newer PTX are
/// skipped, so that a unit may have none. Throws std::runtime_error for a damaged or unknown structure.
std::vector<std::vector<PtxText>> ptx_of(const void* wrapper);

/// Of one unit's texts the one that a device of compute capability 9.0 runs: exact 90a first, else the
/// highest <= 90. nullptr when there is none.
const PtxText* choose(const std::vector<PtxText>& texts);

}  // namespace emulator::ptx
