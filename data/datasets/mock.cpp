#include "data/datasets/mock.h"

namespace nemocube {

MockDataset::MockDataset(const MockOptions& options)
    : options_(options), stream_(options.seed, "mock data set") {
  require(options.vocab_size >= 1, "mock data set: vocab_size must be 1 or more, is ", options.vocab_size);
  require(options.seq_length >= 2, "mock data set: seq_length must be 2 or more, is ", options.seq_length);
  require(options.num_samples >= 1, "mock data set: num_samples must be 1 or more, is ", options.num_samples);
}

Sample MockDataset::sample(std::int64_t i) const {
  check_index(i);
  const auto length = static_cast<std::size_t>(options_.seq_length);
  Sample sample;
  sample.id = cat("mock ", i);
  sample.lengths = {options_.seq_length};
  sample.input_ids.resize(length);
  sample.labels.assign(length, ignored_label);
  for (std::size_t t = 0; t < length; ++t)
    sample.input_ids[t] = static_cast<std::int64_t>(stream_.below(
        static_cast<std::uint64_t>(i) * length + t, static_cast<std::uint64_t>(options_.vocab_size)));
  std::copy(sample.input_ids.begin() + 1, sample.input_ids.end(), sample.labels.begin());
  return sample;
}

}  // namespace nemocube
