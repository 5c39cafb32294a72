#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "ops/bench.h"
#include "train/bench/kernel_counters.h"

/// Counted cases of `bench op --nano`, kept in a file between its runs and `bench nano` (nano_estimate.h).
namespace nemocube {

struct CountedKernel {
  std::string name;    ///< short
  double seconds = 0;  ///< of all launches of a call, work shared evenly: modelled_time, Placement::even
  double placed_seconds = 0;  ///< Placement::blocks
  std::string bound;          ///< of work shared evenly
};

struct CountedCase {
  std::string op, variant;
  BenchShape shape;
  std::vector<CountedKernel> kernels;

  /// A size of the shape; throws Error naming the case where the shape has no such size.
  double size(const std::string& name) const;
};

class CountedCases {
 public:
  CountedCases() = default;
  explicit CountedCases(std::vector<CountedCase> cases) : cases_(std::move(cases)) {}
  /// Throws Error naming operation and variant where there is no such case.
  const CountedCase& find(const std::string& op, const std::string& variant) const;
  const std::vector<CountedCase>& all() const { return cases_; }

 private:
  std::vector<CountedCase> cases_;
};

CountedCase counted_case(const std::string& op, const BenchCase& work, const KernelCounters& counted);

/// Adds a line of JSON to the file. Throws Error where it cannot be written.
void append_counted_case(const std::filesystem::path& file, const CountedCase& counted);
/// Throws Error naming the file and its mistake.
CountedCases read_counted_cases(const std::filesystem::path& file);

}  // namespace nemocube
