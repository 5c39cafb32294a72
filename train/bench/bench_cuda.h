#pragma once
#include <filesystem>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "ops/bench.h"

namespace nemocube {

struct BenchCudaOptions {
  BenchOptions sizes;
  int repeats = 15;
  bool cold = false;   ///< empties the L2 before every timed call
  bool verify = true;  ///< every case, before it is measured
  bool json = false;
  bool markdown = false;
  std::filesystem::path cases = {};
};

/// A case of an operation that is to be benched.
struct NamedCase {
  std::string op;
  BenchCase work;
};

/// The highest rates of the device, measured.
struct CudaRates {
  double bytes_per_second = 0;  ///< of device memory: a copy's bytes, read and written
  double flops_per_second = 0;  ///< of a large product with operands of the dtype
};
/// The best of ten copies of 1 GiB and of ten products of 8192 x 8192 x 8192 with random operands; `small`:
/// of sizes that take microseconds and say little.
CudaRates measure_cuda_rates(DType dtype, bool small);

/// Runs cases on the CUDA device: each is called once to warm up, verified, and measured. On a device a
/// measurement is the time of a call, beside its floor: the larger of its bytes and its operations at the
/// measured rates. With `cold` the L2 is emptied before each call, which is timed by events of the device.
/// Without `cold` calls follow one another, and small operands stay in the L2, so that a time can be below
/// the floor. Under tools/cuda_emulator, whose times say nothing, a measurement is the emulator's counters of
/// one call. Prints a table, or with `json` one object a line: the device, then each case. With `markdown`,
/// which works under the emulator only, prints a section for each case (kernel_report.h) about its second
/// call, and verifies nothing; `cases` then names a file that gets a line for each case (counted_cases.h).
/// Returns whether all cases verified.
class BenchCuda {
 public:
  BenchCuda(const BenchCudaOptions& options, std::ostream& out);
  void run(const NamedCase& c);
  bool all_ok() const { return all_ok_; }

 private:
  void count(const NamedCase& c, bool ok);
  void report(const NamedCase& c);
  void time(const NamedCase& c, bool ok);
  std::vector<double> seconds_of_calls(const BenchCase& work);

  BenchCudaOptions options_;
  std::ostream& out_;
  CudaRates rates_;
  Tensor flush_;  ///< larger than the L2
  bool all_ok_ = true;
};

/// The meaning of each column and field: of counters (kernel_counters.h), or of times.
std::string_view bench_cuda_legend(bool counted);

}  // namespace nemocube
