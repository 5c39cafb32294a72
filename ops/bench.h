#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/dtype.h"

/// Benchmarks of single operations, listed by `nemocube bench op`. An operation's x_bench.cpp registers a
/// function that makes the cases worth timing:
///     const RegisterBench bench("rmsnorm", [](const BenchOptions& o) { ... return cases; });
namespace nemocube {

struct BenchOptions {
  DType dtype = DType::f32;
  bool small = false;  ///< sizes that finish in milliseconds, for tests
};

struct BenchCase {
  std::string variant;           ///< "fused forward", "chunked backward"
  std::string shape;             ///< "rows=2048 cols=512"
  double bytes = 0;              ///< least bytes to move from and to memory
  double flops = 0;              ///< floating-point operations, multiply-add = 2
  std::function<void()> run;     ///< one call
  std::function<bool()> verify;  ///< checks the result of a call against a plain reference
};

using BenchMaker = std::function<std::vector<BenchCase>(const BenchOptions&)>;
struct BenchEntry {
  std::string op;
  BenchMaker make;
};

class RegisterBench {
 public:
  RegisterBench(std::string op, BenchMaker make);
};
const std::vector<BenchEntry>& bench_entries();  ///< sorted by name

}  // namespace nemocube
