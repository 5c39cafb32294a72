#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "ops/vocabulary_part.h"

/// Row kernels of cross-entropy, for logits without padding. Internal to this folder and linear_cross_entropy.
namespace nemocube::cpu {

/// Labels in host order, checked against the vocabulary. Error naming `op`, label and position.
std::span<const std::int64_t> checked_labels(const char* op, const Tensor& labels, std::int64_t rows,
                                             std::int64_t vocabulary);

/// What loss and gradient of each row need of its logits z over the whole vocabulary, in their accumulation
/// dtype. Zeros in rows without label.
struct RowStatistics {
  Tensor max;   ///< [rows]: the largest logit m
  Tensor sums;  ///< [rows, 2]: sum_v e^(z[v] - m), and z[label]
};
/// Statistics of the rows of logits [rows, own tokens of `part`]. A cut vocabulary costs two messages, one for
/// each member of the result; none when there are no rows.
RowStatistics row_statistics(const Tensor& logits, std::span<const std::int64_t> labels,
                             const VocabularyPart& part);

/// Sets `losses` to the loss of each row, 0 for rows without label.
void row_losses(std::span<double> losses, const RowStatistics& statistics,
                std::span<const std::int64_t> labels);

/// dlogits = scale (softmax - onehot) for columns that are the tokens from `begin` on; rows without label are
/// set to zero. `dlogits` may be `logits`, or bf16 for f32 logits.
void softmax_gradient(const Tensor& dlogits, const Tensor& logits, const RowStatistics& statistics,
                      std::span<const std::int64_t> labels, std::int64_t begin, double scale);

/// Losses and gradient at once, for rows that fit the cache, every one labelled, over the whole vocabulary.
/// `dlogits` may be `logits`, or bf16 for f32 logits.
void softmax_losses_and_gradient(const Tensor& dlogits, std::span<double> losses, const Tensor& logits,
                                 std::span<const std::int64_t> labels, double scale);

}  // namespace nemocube::cpu
