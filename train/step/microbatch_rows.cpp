#include "train/step/microbatch_rows.h"

#include <algorithm>

#include "model/mtp/rolled.h"

namespace nemocube {

MicrobatchRows::MicrobatchRows(const ParallelModel& parallel, const TokenBatch& batch, double noised_factor)
    : sequences(batch.sequences) {
  const ModelPart& part = parallel.model().part();
  if (std::ranges::any_of(part.chunks, &ModelChunk::embeddings))
    ids = parallel.own_tokens(batch.ids, sequences);
  if (!part.head()) return;
  const auto own_labels = [&](const Tensor& all) {
    return Labels(parallel.own_tokens(all, sequences), batch.label_capacity);
  };
  const Tensor weights = label_weights(batch, noised_factor);
  labels = weights ? Labels(parallel.own_tokens(batch.labels, sequences), batch.label_capacity,
                            parallel.own_tokens(weights, sequences))
                   : own_labels(batch.labels);
  for (std::int64_t k = 1; k <= parallel.model().choices().mtp.depths; ++k) {
    mtp_ids.push_back(parallel.own_tokens(rolled(batch.ids, sequences, k, 0), sequences));
    mtp_labels.push_back(own_labels(rolled(batch.labels, sequences, k, ignored_label)));
  }
}

MicrobatchRows MicrobatchRows::to(Device device) const {
  MicrobatchRows there = *this;
  if (ids) there.ids = ids.to(device);
  if (labels.values) there.labels = labels.to(device);
  for (Tensor& rolled_ids : there.mtp_ids) rolled_ids = rolled_ids.to(device);
  for (Labels& rolled_labels : there.mtp_labels) rolled_labels = rolled_labels.to(device);
  return there;
}

void MicrobatchRows::become(const MicrobatchRows& other) {
  sequences.become(other.sequences);
  if (ids) ids.copy_from(other.ids);
  if (labels.values) labels.copy_from(other.labels);
  for (std::size_t k = 0; k < mtp_ids.size(); ++k) {
    mtp_ids[k].copy_from(other.mtp_ids[k]);
    mtp_labels[k].copy_from(other.mtp_labels[k]);
  }
}

}  // namespace nemocube
