#pragma once
#include <filesystem>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "ops/bench.h"

namespace nemocube {

struct BenchCudaOptions {
  BenchOptions sizes;
  int repeats = 15;
  bool json = false;
  bool markdown = false;
  std::filesystem::path cases = {};
};

/// A case of an operation that is to be benched.
struct NamedCase {
  std::string op;
  BenchCase work;
};

/// Runs cases on the CUDA device: each is called once to warm up, verified, and measured. On a device a measurement
/// is the time of a call; under tools/cuda_emulator, whose times say nothing, it is what the emulator counted in one
/// call. Prints a table, or with `json` one object a line: the device, then each case. With `markdown`, which the emulator
/// alone can fill, it prints a section for each case (kernel_report.h) of its second call, and verifies nothing; `cases` then names a
/// file that a line is added to for each (counted_cases.h). Returns
/// whether all cases verified.
class BenchCuda {
 public:
  BenchCuda(const BenchCudaOptions& options, std::ostream& out);
  void run(const NamedCase& c);
  bool all_ok() const { return all_ok_; }

 private:
  void count(const NamedCase& c, bool ok);
  void report(const NamedCase& c);
  void time(const NamedCase& c, bool ok);

  BenchCudaOptions options_;
  std::ostream& out_;
  bool all_ok_ = true;
};

/// What each column and field means: of what is counted (kernel_counters.h), or of what is timed.
std::string_view bench_cuda_legend(bool counted);

}  // namespace nemocube
