#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "data/datasets/dataset.h"
#include "ops/sequences.h"

namespace nemocube {

/// Rows of one forward pass, padded to a rectangle, with their counts.
struct Batch {
  Tensor input_ids;                                ///< [rows, width] i64
  Tensor labels;                                   ///< [rows, width] i64, already shifted, -100: no target
  std::vector<std::string> ids;                    ///< of the rows
  std::vector<std::vector<std::int64_t>> lengths;  ///< of the documents in each row, without padding
  /// The number of each row among the rows of all epochs, in the order of
  /// training; the same on any number of ranks.
  std::vector<std::int64_t> row_numbers;
  std::int64_t samples = 0;              ///< rows
  std::int64_t positions = 0;            ///< rows * width
  std::int64_t content_tokens = 0;       ///< positions that are not padding
  std::int64_t label_tokens = 0;         ///< labels that are targets
  std::int64_t tail_trimmed_tokens = 0;  ///< positions without each row's trailing run of -100;
                                         ///< num_tokens_per_step in training.jsonl
};

/// Pads to the longest row. pre: each sample passes check_sample()
Batch collate(std::span<const Sample> samples, std::int64_t pad_id);

/// The content of a batch without its padding: the documents one after another. Causal models give the same
/// loss as on the rectangle, since padding follows the content and has no labels.
struct TokenBatch {
  /// Counts the labels, which lie in host memory here, so that no step has to read them from a device.
  TokenBatch(Tensor ids_, Tensor labels_, Sequences sequences_);
  /// The same batch with tensors whose sizes follow from the capacity alone: spare
  /// rows have id 0 and no label; Sequences::with_capacity() and Labels describe
  /// the rest. Error where the batch is larger.
  TokenBatch with_capacity(std::int64_t rows, std::int64_t sequences, std::int64_t labels) const;
  Tensor ids;                 ///< [tokens] i64
  Tensor labels;              ///< [tokens] i64
  Sequences sequences;        ///< one for each document
  std::int64_t label_tokens;  ///< labels that are targets; of a corrupted batch: tokens that are targets
  std::int64_t label_capacity = 0;  ///< of Labels; 0: as many as there are
  /// [tokens] f64, of a corrupted batch (data/loader/corruption.h): the weight of the loss of each noised
  /// token, by which the mean over noised_tokens is formed; 0: none is noised there. Undefined: none at all.
  Tensor noised_weights;
  std::int64_t noised_tokens = 0;
};
/// The weights of a batch's labels (Labels): those of noised tokens times `factor`, and 1 for all others;
/// undefined where none are noised.
Tensor label_weights(const TokenBatch& batch, double factor);
TokenBatch without_padding(const Batch& batch);
/// without_padding() for the batches of a step, with numbered sequences (Sequences::numbered): a row of the
/// data has 2^32 numbers, so that the draws of dropout and noise for a token do not depend on the number of
/// ranks. Every `of_pass` consecutive batches are the rows of one forward pass that a pipeline divides: their
/// padded length is the widest one, as in NeMo AutoModel, which pads before it divides. pre: of_pass >= 1;
/// the batches come from a Loader
std::vector<TokenBatch> numbered_without_padding(std::span<const Batch> batches, std::int64_t of_pass = 1);

}  // namespace nemocube
