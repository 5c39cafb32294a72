#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "parallel/comm/world.h"
#include "parallel/grid/hypercube_grid.h"

namespace nemocube {

struct BenchCommOptions {
  std::vector<GridDimension> grid;  ///< empty: dp over all ranks
  std::vector<std::string> groups;  ///< of ProcessGroups; empty: each set of ranks once, by its first name
  std::vector<std::string> kinds;   ///< names of operations; empty: all
  std::int64_t least_bytes = 1024;  ///< sizes are least_bytes, times `factor`, ..., up to most_bytes
  std::int64_t most_bytes = std::int64_t{256} << 20;
  std::int64_t factor = 4;
  DType dtype = DType::f32;
  double seconds = 0.1;  ///< about how long the calls of one case take
  Device device;         ///< of the tensors: device_of_rank()
};

/// One operation of one group at one size. All groups of the name work at the same time; times are of the
/// slowest rank of the job, and errors are added up over all ranks.
struct BenchCommCase {
  std::string group;
  int ranks = 0;  ///< of one group
  Operation operation = Operation::barrier;
  std::int64_t bytes = 0;          ///< of the larger of input and output on one rank
  std::int64_t calls = 0;          ///< timed
  double seconds = 0;              ///< of one call
  double algorithm_bandwidth = 0;  ///< bytes / seconds
  double bus_bandwidth = 0;        ///< algorithm_bandwidth times the part of `bytes` that a rank must send
  double copy_fraction = 0;        ///< bus_bandwidth / bandwidth of copies of `bytes` on all ranks at once
  std::int64_t wrong = 0;          ///< elements that differ from the exact result on small integers
};

/// Every operation at every size: one checked call, then timed calls. `report` gets each case on every rank.
/// Bandwidths are defined as in nccl-tests (doc/PERFORMANCE.md there). Throws Error for a name that is no
/// group of this rank or no operation.
void bench_comm(World& world, const BenchCommOptions& options,
                const std::function<void(const BenchCommCase&)>& report);

/// The meaning of each column.
std::string_view bench_comm_legend();

}  // namespace nemocube
