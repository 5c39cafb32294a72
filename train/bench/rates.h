#pragma once
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "train/bench/machine.h"

/// The highest rates of this machine, measured with all threads. bench_op() computes its floors from them.
/// Every rate is the best over several repeats and several methods, so that no operation exceeds it.
namespace nemocube {

struct Bandwidth {
  std::int64_t bytes =
      0;  ///< read and written in one pass; memory written in place counts twice, as in ops/bench.h
  double bytes_per_second = 0;
};

struct Rates {
  std::vector<Bandwidth> bandwidth;  ///< by ascending bytes, at least one
  double flops_per_second = 0;       ///< matrix products

  /// Bandwidth for an operation that moves `bytes`: the one measured at the largest size up to `bytes`. Data
  /// of that size lies in the same level of cache or in a nearer one.
  double bytes_per_second(std::int64_t bytes) const;
  double dram_bytes_per_second() const { return bandwidth.back().bytes_per_second; }
};

/// Bandwidth from 16 KiB to `most_bytes` in powers of two: the fastest of reading, updating in place and
/// adding one array to another, each thread on its own part.
std::vector<Bandwidth> measure_bandwidth(std::int64_t most_bytes);

/// FLOP/s of square products: the fastest of some sizes up to `largest`, with operands of `dtype` and of its
/// accumulation dtype.
double measure_products(DType dtype, std::int64_t largest);

/// Bandwidth and FLOP/s. `small` uses sizes that take milliseconds; they say little about memory.
Rates measure_rates(const Machine& machine, DType dtype, bool small);

}  // namespace nemocube
