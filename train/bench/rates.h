#pragma once
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "train/bench/machine.h"

/// What this machine can do, measured with all threads: the rates that floors are made of. Every rate is the
/// best of several repeats of several ways to move or multiply, so that no operation goes faster.
namespace nemocube {

struct Bandwidth {
  std::int64_t bytes =
      0;  ///< read and written in one pass; memory written in place counts twice, as in ops/bench.h
  double bytes_per_second = 0;
};

struct Rates {
  std::vector<Bandwidth> bandwidth;  ///< by ascending bytes, at least one
  double flops_per_second = 0;       ///< matrix products

  /// Rate for an operation that moves so many bytes: as measured at the largest size that is not larger, which
  /// lies no farther from the cores.
  double bytes_per_second(std::int64_t bytes) const;
  double dram_bytes_per_second() const { return bandwidth.back().bytes_per_second; }
};

/// Bandwidth from 16 KiB to `most_bytes` in powers of two: the fastest of reading, updating in place and adding
/// one array to another, each thread on its own part.
std::vector<Bandwidth> measure_bandwidth(std::int64_t most_bytes);

/// FLOP/s of square products: the fastest of some sizes up to `largest`, with operands of `dtype` and of its
/// accumulation dtype.
double measure_products(DType dtype, std::int64_t largest);

/// Both. `small`: sizes that take milliseconds, and so say little about memory.
Rates measure_rates(const Machine& machine, DType dtype, bool small);

}  // namespace nemocube
