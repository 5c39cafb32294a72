#pragma once

/// What a profiler counts of each kernel (machine/watch.h, Tally), summed over the program's launches.
namespace emulator {

/// cudaProfilerStart: totals begin at zero.
void restart_counters();
/// cudaProfilerStop and the end of the process: writes totals since the last restart to the file, as JSON.
void write_counters();
/// The same as a table on standard error, for people.
void print_counters();

}  // namespace emulator
