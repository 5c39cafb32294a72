#include "data/datasets/dataset.h"

#include <algorithm>
#include <numeric>

namespace nemocube {

std::int64_t Sample::content_length() const {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

std::int64_t Sample::label_tokens() const {
  return static_cast<std::int64_t>(labels.size()) - std::ranges::count(labels, ignored_label);
}

void check_sample(const Sample& sample) {
  const std::int64_t content = sample.content_length();
  expect(sample.input_ids.size() == sample.labels.size(), "row '", sample.id, "': ", sample.input_ids.size(),
         " ids, ", sample.labels.size(), " labels");
  expect(content <= sample.positions(), "row '", sample.id, "': ", content, " positions of content in ",
         sample.positions());
  for (const std::int64_t length : sample.lengths)
    expect(length > 0, "row '", sample.id, "': document of length ", length);
  for (std::int64_t t = content; t < sample.positions(); ++t)
    expect(sample.labels[static_cast<std::size_t>(t)] == ignored_label, "row '", sample.id,
           "': a label in the padding, at position ", t);
}

}  // namespace nemocube
