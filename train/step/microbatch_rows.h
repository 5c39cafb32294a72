#pragma once
#include <vector>

#include "data/loader/batch.h"
#include "ops/cross_entropy/labels.h"
#include "parallel/parallel_model/parallel_model.h"

namespace nemocube {

/// A rank's part of a microbatch.
struct MicrobatchRows {
  /// In host memory. `noised_factor`: of the weights of noised tokens (label_weights()).
  MicrobatchRows(const ParallelModel& parallel, const TokenBatch& batch, double noised_factor = 1);
  MicrobatchRows to(Device device) const;
  /// Takes over the values of another microbatch of the same sizes, in the present memory.
  /// Sequences::become() takes over the other's sequences.
  void become(const MicrobatchRows& other);

  std::int64_t label_count() const { return labels.values ? labels.count() : 0; }

  Sequences sequences;  ///< of the whole microbatch
  Tensor ids;           ///< where the model's part begins with the embeddings
  Labels labels;        ///< where the rank has the head
  /// Of each depth of multi-token prediction, where the part has the head: ids and labels rolled by 1, 2, ...
  std::vector<Tensor> mtp_ids;
  std::vector<Labels> mtp_labels;
};

}  // namespace nemocube
