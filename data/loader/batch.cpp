#include "data/loader/batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace nemocube {

namespace {

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

void count(Batch& batch) {
  const std::int64_t width = batch.labels.dim(1);
  batch.samples = batch.labels.dim(0);
  batch.positions = batch.samples * width;
  batch.content_tokens = batch.label_tokens = batch.tail_trimmed_tokens = 0;
  for (std::int64_t r = 0; r < batch.samples; ++r) {
    batch.content_tokens += sum(batch.lengths[static_cast<std::size_t>(r)]);
    const std::int64_t* labels = batch.labels.row<std::int64_t>(r);
    std::int64_t trimmed = 0;
    for (std::int64_t t = 0; t < width; ++t)
      if (labels[t] != ignored_label) {
        ++batch.label_tokens;
        trimmed = t + 1;
      }
    batch.tail_trimmed_tokens += trimmed;
  }
}

}  // namespace

Batch collate(std::span<const Sample> samples, std::int64_t pad_id) {
  std::int64_t width = 0;
  for (const Sample& sample : samples) width = std::max(width, sample.positions());

  Batch batch;
  const Shape shape{static_cast<std::int64_t>(samples.size()), width};
  batch.input_ids = Tensor::empty(shape, DType::i64, Device::cpu);  // the loader is the host
  batch.labels = Tensor::empty(shape, DType::i64, Device::cpu);     // the loader is the host
  for (std::size_t r = 0; r < samples.size(); ++r) {
    const Sample& sample = samples[r];
    check_sample(sample);
    auto* ids = batch.input_ids.row<std::int64_t>(static_cast<std::int64_t>(r));
    auto* labels = batch.labels.row<std::int64_t>(static_cast<std::int64_t>(r));
    std::fill(std::copy(sample.input_ids.begin(), sample.input_ids.end(), ids), ids + width, pad_id);
    std::fill(std::copy(sample.labels.begin(), sample.labels.end(), labels), labels + width, ignored_label);
    batch.ids.push_back(sample.id);
    batch.lengths.push_back(sample.lengths);
  }
  count(batch);
  return batch;
}

TokenBatch::TokenBatch(Tensor ids_, Tensor labels_, Sequences sequences_)
    : ids(std::move(ids_)),
      labels(std::move(labels_)),
      sequences(std::move(sequences_)),
      label_tokens(Labels(labels).count()) {}

TokenBatch TokenBatch::with_capacity(std::int64_t rows, std::int64_t sequence_count,
                                     std::int64_t labels_most) const {
  const std::int64_t targets = Labels(labels).count();
  require(targets <= labels_most, "batch: want room for ", targets, " labels, got a capacity of ",
          labels_most);
  const Sequences with_room = sequences.with_capacity(rows, sequence_count);
  const auto padded = [&]<class T>(const Tensor& t, T value) {
    std::vector<T> values(t.data<T>(), t.data<T>() + t.numel());
    values.resize(static_cast<std::size_t>(rows), value);
    return Tensor::from(values, {rows});
  };
  TokenBatch result(padded(ids, std::int64_t{0}), padded(labels, ignored_label), with_room);
  result.label_tokens = label_tokens;
  result.label_capacity = labels_most;
  if (noised_weights) result.noised_weights = padded(noised_weights, 0.0);
  result.noised_tokens = noised_tokens;
  return result;
}

Tensor label_weights(const TokenBatch& batch, double factor) {
  if (!batch.noised_weights) return {};
  std::vector<double> weights = batch.noised_weights.to_vector();
  for (double& weight : weights) weight = weight == 0 ? 1 : weight * factor;
  return Tensor::from(weights, {std::ssize(weights)});
}

TokenBatch without_padding(const Batch& batch) {
  const Tensor all_ids =
      Tensor::empty({batch.content_tokens}, DType::i64, Device::cpu);  // the loader is the host
  const Tensor all_labels =
      Tensor::empty({batch.content_tokens}, DType::i64, Device::cpu);  // the loader is the host
  auto* ids = all_ids.data<std::int64_t>();
  auto* labels = all_labels.data<std::int64_t>();
  std::vector<std::int64_t> lengths;
  for (std::int64_t r = 0; r < batch.samples; ++r) {
    const auto& documents = batch.lengths[static_cast<std::size_t>(r)];
    const std::int64_t content = sum(documents);
    ids = std::copy_n(batch.input_ids.row<std::int64_t>(r), content, ids);
    labels = std::copy_n(batch.labels.row<std::int64_t>(r), content, labels);
    lengths.insert(lengths.end(), documents.begin(), documents.end());
  }
  return {all_ids, all_labels, Sequences::of_lengths(lengths)};
}

namespace {

TokenBatch numbered_rows(const Batch& batch, std::int64_t padded_length) {
  constexpr std::int64_t numbers_of_row = std::int64_t{1} << 32;
  TokenBatch result = without_padding(batch);
  std::vector<std::int64_t> numbers;
  for (std::size_t row = 0; row < batch.lengths.size(); ++row) {
    std::int64_t number = batch.row_numbers.at(row) * numbers_of_row;
    for (const std::int64_t length : batch.lengths[row]) {
      numbers.push_back(number);
      number += length;
    }
  }
  result.sequences = result.sequences.numbered(std::move(numbers), padded_length);
  return result;
}

}  // namespace

std::vector<TokenBatch> numbered_without_padding(std::span<const Batch> batches, std::int64_t of_pass) {
  std::vector<TokenBatch> result;
  const auto most = static_cast<std::size_t>(of_pass);
  for (std::size_t first = 0; first < batches.size(); first += most) {
    const auto pass = batches.subspan(first, std::min(most, batches.size() - first));
    std::int64_t padded_length = 1;  // also of a pass without rows
    for (const Batch& batch : pass) padded_length = std::max(padded_length, batch.input_ids.dim(1));
    for (const Batch& batch : pass) result.push_back(numbered_rows(batch, padded_length));
  }
  return result;
}

}  // namespace nemocube
