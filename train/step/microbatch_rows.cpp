#include "train/step/microbatch_rows.h"

namespace nemocube {

MicrobatchRows::MicrobatchRows(const ParallelModel& parallel, const TokenBatch& batch)
    : sequences(batch.sequences) {
  const ModelPart& part = parallel.model().part();
  if (part.embeddings()) ids = parallel.own_tokens(batch.ids, sequences);
  if (part.head()) labels = Labels(parallel.own_tokens(batch.labels, sequences), batch.label_capacity);
}

MicrobatchRows MicrobatchRows::to(Device device) const {
  MicrobatchRows there = *this;
  if (ids) there.ids = ids.to(device);
  if (labels.values) there.labels = labels.to(device);
  return there;
}

void MicrobatchRows::become(const MicrobatchRows& other) {
  sequences.become(other.sequences);
  if (ids) ids.copy_from(other.ids);
  if (labels.values) labels.copy_from(other.labels);
}

}  // namespace nemocube
