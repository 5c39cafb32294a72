#pragma once
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "ops/bench.h"
#include "train/bench/rates.h"

namespace nemocube {

struct BenchOpOptions {
  std::string op;               ///< one operation; empty: all
  std::string variant = "all";  ///< cases whose variant contains this
  BenchOptions sizes;
  int repeats = 15;
  bool cold = false;  ///< empties the caches before every repeat
  bool verify = true;
  bool json = false;
  bool markdown = false;  ///< tables of docs/kernels.md, on Device::cuda under tools/cuda_emulator
  std::filesystem::path
      cases;  ///< with markdown: a file that a line is added to for each case (counted_cases.h)
};

/// Every case is called once to warm up, verified, timed `repeats` times and printed on one line. The line
/// includes the floor, the time that no implementation can beat. The floor is the larger of
///   bytes / bandwidth  bandwidth measured for the same number of bytes, which may fit in a cache; with
///                      `cold` the bandwidth of memory
///   flops / FLOP/s     FLOP/s of large matrix products
/// The output is a legend and a table. With `json` the output is one object a
/// line: {"machine": .., "rates": ..} first, then {"op": .., ..} for each case.
/// Returns false when a case failed its verification. Throws Error when no case
/// matches `op` and `variant`; the message lists the operations, or the variants
/// of the operation. On Device::cuda only operations with CUDA kernels are
/// benched; BenchCuda says what is measured there.
bool bench_op(const BenchOpOptions& options, std::ostream& out);
/// The operations that `op` stands for: itself, or all that have benchmarks when empty.
std::vector<std::string_view> benched_operations(const std::string& op);

/// The meaning of each column of the table and each field of the JSON lines.
std::string_view bench_op_legend();

/// The least time of a case in seconds, and its cause: "L1", "L2", .., "DRAM", or "products".
struct Floor {
  double seconds = 0;
  std::string bound;
};
Floor floor_of(double bytes, double flops, const Rates& rates, const Machine& machine, bool cold);

}  // namespace nemocube
