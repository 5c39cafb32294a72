#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace emulator::test {

/// One 32-bit value of each thread.
using LaneValues = std::vector<std::uint32_t>;

struct LaneOutcome {
  int error = 0;  ///< cudaError of the launch
  std::vector<LaneValues>
      rows;  ///< what the threads left in %r50, %r51 ...; `untouched` for threads that exited
  std::vector<std::string> reports;  ///< kinds
};
constexpr std::uint32_t untouched = 0xdeadbeef;

/// Runs PTX statements on one block of `threads`: %r0, %r1 ... hold the inputs; what the statements leave in %r50,
/// %r51 ... comes back. Other registers and %t: kernel_text (tests/harness.h); %r90 and above, %rd90 and above are
/// used.
LaneOutcome run_lanes(const std::string& body, const std::vector<LaneValues>& inputs, int outputs,
                      std::uint32_t threads = 32, const std::string& declarations = "",
                      std::uint64_t seed = 1);

}  // namespace emulator::test
