#pragma once
#include <memory>

#include "core/rng.h"
#include "data/datasets/dataset.h"

namespace nemocube {

struct MockOptions {
  std::int64_t vocab_size = 0;
  std::int64_t seq_length = 0;
  std::int64_t num_samples = 0;
  std::uint64_t seed = 0;
};

/// Uniformly random ids, for benchmarks and tests: token t of row i is draw i * seq_length + t of the stream
/// (seed, "mock data set"), below vocab_size. Every label is the next id; the last label is ignored_label.
class MockDataset final : public Dataset {
 public:
  explicit MockDataset(const MockOptions& options);  ///< Error when a size is below 1, seq_length below 2
  std::int64_t size() const override { return options_.num_samples; }
  Sample sample(std::int64_t i) const override;
  std::int64_t content_length(std::int64_t) const override { return options_.seq_length; }

 private:
  MockOptions options_;
  RandomStream stream_;
};

}  // namespace nemocube
