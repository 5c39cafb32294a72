#pragma once
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include "ops/bench.h"
#include "train/bench/rates.h"

namespace nemocube {

struct BenchOpOptions {
  std::string op;               ///< one operation, or empty: all
  std::string variant = "all";  ///< cases whose variant contains this
  BenchOptions sizes;
  int repeats = 15;
  bool cold = false;  ///< empties the caches before every repeat
  bool json = false;
};

/// For every case: one call to warm up, verification, timed repeats, and one line with the floor, the time that no
/// implementation can beat: the larger of
///   bytes / bandwidth  measured for as many bytes, which may lie in a cache (memory's when `cold`)
///   flops / FLOP/s     of large matrix products
/// The output is a table under its legend, or with `json` one object a line: {"machine": .., "rates": ..} first, then
/// {"op": .., ..} for each case. Returns false when a case failed its verification. Error when nothing matches `op`
/// and `variant`, naming the operations, or the variants of that operation.
bool bench_op(const BenchOpOptions& options, std::ostream& out);

/// What each column of the table and each field of the JSON lines means.
std::string_view bench_op_legend();

/// The least time of a case in seconds and what sets it: "L1", "L2", .., "DRAM", or "products".
struct Floor {
  double seconds = 0;
  std::string bound;
};
Floor floor_of(double bytes, double flops, const Rates& rates, const Machine& machine, bool cold);

}  // namespace nemocube
