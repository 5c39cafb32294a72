#pragma once
#include <cstdint>

/// What a profiler counts of each kernel (machine/watch.h, Tally), summed over the program's launches.
namespace emulator {

/// Of one launch, by all its blocks.
struct LaunchCounts {
  std::uint64_t dram_bytes = 0, sectors = 0, tensor_multiply_adds = 0, multiply_adds = 0, wavefronts = 0,
                warp_instructions = 0, blocks = 0;
  std::uint64_t resident_blocks = 0;  ///< that a multiprocessor holds at once
};
/// Of the launch that ended last on this thread.
LaunchCounts counts_of_last_launch();

/// cudaProfilerStart: totals begin at zero.
void restart_counters();
/// cudaProfilerStop and the end of the process: writes totals since the last restart to the file, as JSON.
void write_counters();
/// The same as a table on standard error, for people.
void print_counters();

}  // namespace emulator
