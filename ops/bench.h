#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"

/// Benchmarks of single operations, listed by `nemocube bench op`. An operation's x_bench.cpp registers a
/// function that makes the cases worth timing:
///     const RegisterBench bench("rmsnorm", [](const BenchOptions& o) { ... return cases; });
namespace nemocube {

struct BenchOptions {
  DType dtype = DType::f32;
  bool small = false;  ///< sizes that finish in milliseconds, for tests
  /// Cases of operations without CUDA kernels are asked for on the CPU only.
  Device device = Device::cpu;
  bool emulated = false;  ///< sizes of about a million elements, for a device in software
  /// Sizes of Nemotron 3 Nano, for 8,192 tokens; on the software GPU mostly for few tokens (docs/kernels.md).
  bool nano = false;
};

/// Named sizes of a case in the order to print them: {{"rows", 2048}, {"cols", 512}}.
using BenchShape = std::vector<std::pair<std::string, std::int64_t>>;

struct BenchCase {
  std::string variant;  ///< "fused forward", "chunked forward+backward"
  BenchShape shape;
  /// The fewest bytes that one call must read from and write to memory by the operation's contract. Each
  /// operand of forward and of backward counts once; an operand that is both read and written counts twice.
  /// Rows that are not needed do not count, nor does data that an implementation reads again or keeps for
  /// backward.
  double bytes = 0;
  /// Floating-point operations of the matrix products (dot products included) of one call, a multiply-add
  /// counted as 2; 0: none. Elementwise arithmetic is left out, because memory limits it.
  double flops = 0;
  std::function<void()> run = {};  ///< one call
  /// Whether the result of a call agrees with the definition or with another variant.
  std::function<bool()> verify = {};
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
