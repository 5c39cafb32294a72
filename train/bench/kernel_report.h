#pragma once
#include <string>
#include <vector>

#include "ops/bench.h"
#include "train/bench/kernel_counters.h"
#include "train/cost/gpu_rates.h"

/// Estimates for counted kernels on an H100, as tables of docs/kernels.md.
namespace nemocube {

/// How the work of a launch lies on the multiprocessors.
enum class Placement {
  blocks,  ///< in whole blocks that cost the same: of b blocks the busiest multiprocessor has b / multiprocessors, rounded up
  even,    ///< shared evenly, as with many blocks for each multiprocessor
};

/// Work of the busiest multiprocessor over an even share of the kernel's work: 1.5 for 88 blocks on 132.
/// Launches of one kernel count as equally large.
double busiest_share(const KernelCount& k, const GpuRates& rates = {});

/// The least time that the rates allow a kernel, all launches together. Placement counts for resources of a
/// multiprocessor: tensor cores, multiply-adds, shared memory, issue.
struct ModelledTime {
  double seconds = 0, shared_seconds = 0;
  const char* bound =
      "";  ///< what takes that long: "DRAM", "L2", "tensor cores", "multiply-adds", "shared", "issue"
};
ModelledTime modelled_time(const KernelCount& k, Placement placement = Placement::blocks,
                           const GpuRates& rates = {});

/// The most DRAM bytes that a case may move, as a multiple of its contract's bytes; 0 (no such aim) where
/// operations take longer than the bytes.
double dram_aim(const std::string& op, const BenchCase& work, const GpuRates& rates = {});
/// The aims that a case or one of its kernels misses, in words: "DRAM 1.21 > 1.05".
std::vector<std::string> missed_aims(const std::string& op, const BenchCase& work,
                                     const KernelCounters& counted);
std::vector<std::string> missed_aims(const KernelCount& k, bool memory_bound);

/// "rmsnorm_kernel<float, 4>": without namespaces, result and parameters, long template arguments shortened.
std::string short_kernel_name(const std::string& name);

/// The section of a case: heading, totals, a table with a row for each kernel.
std::string kernel_report(const std::string& op, const BenchCase& work, const KernelCounters& counted);
/// A row of that table.
std::string kernel_row(const KernelCount& k, bool memory_bound);

}  // namespace nemocube
