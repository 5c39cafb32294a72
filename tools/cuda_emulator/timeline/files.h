#pragma once
#include <filesystem>
#include <iosfwd>
#include <vector>

#include "timeline/rates.h"
#include "timeline/schedule.h"
#include "timeline/simulate.h"

/// Records of processes, and what is made of them: a trace for ui.perfetto.dev and a summary.
namespace emulator::timeline {

/// As text. read_process throws std::runtime_error for what write_process did not write.
void write_process(std::ostream& out, const Process& process);
Process read_process(std::istream& in);

/// A process's file in the folder of records appears at once and whole. Throws std::runtime_error.
void save_process(const std::filesystem::path& folder, const Process& process);
/// All of the folder, by rank.
std::vector<Process> load_processes(const std::filesystem::path& folder);

/// Chrome's JSON trace format: a process for each device, with a thread for each stream, and for each thread of the program; and
/// the longest chain of operations and calls, "critical path", by itself.
void write_trace(std::ostream& out, const std::vector<Process>& processes, const Result& result);

/// For people.
void print_summary(std::ostream& out, const Result& result, const Exposed& exposed, const Rates& rates);
/// The same as JSON: "seconds", "exposed_seconds", "least_exposed_seconds", "incomplete_transfers", "critical" (seconds by what),
/// "devices" (rank, device, seconds by what; "ranges": by NVTX ranges, operations but for transfers: seconds, number, begin of the
/// first and end of the last).
void write_summary(std::ostream& out, const std::vector<Process>& processes, const Result& result,
                   const Exposed& exposed);

}  // namespace emulator::timeline
