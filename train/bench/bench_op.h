#pragma once
#include <iosfwd>
#include <string>

#include "ops/bench.h"

namespace nemocube {

/// What this machine can do, measured: a copy larger than the caches, and a large matrix product.
struct MachineRates {
  double bytes_per_second = 0, flops_per_second = 0;
};
MachineRates measure_machine(DType dtype);

struct BenchOpOptions {
  std::string op;               ///< one operation, or empty: all
  std::string variant = "all";  ///< cases whose name contains it
  BenchOptions sizes;
  int repeats = 15;
  bool json = false;
};

/// For every case: verify, warm up, time, and print one line with the floor: the larger of the times that its
/// bytes and its flops would take at the measured rates of the machine. Returns false when a case failed its
/// verification.
bool bench_op(const BenchOpOptions& options, std::ostream& out);

}  // namespace nemocube
