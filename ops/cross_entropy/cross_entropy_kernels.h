#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

/// Row kernels of cross-entropy. Internal to this folder.
namespace nemocube::cpu {

/// Labels in host order, checked against the vocabulary. Error naming `op`, label and position.
std::span<const std::int64_t> checked_labels(const char* op, const Tensor& labels, std::int64_t rows,
                                             std::int64_t vocabulary);

/// Sets `lse` ([rows], f32 or f64) to the logarithm of the sum of exponentials of each labelled row; other
/// elements are left alone. Sets `losses` to the loss of each row, 0 for rows without label.
void softmax_losses(const Tensor& lse, std::span<double> losses, const Tensor& logits,
                    std::span<const std::int64_t> labels);

/// dlogits = scale (softmax - onehot); rows without label are set to zero. dlogits may be logits.
void softmax_gradient(const Tensor& dlogits, const Tensor& logits, const Tensor& lse,
                      std::span<const std::int64_t> labels, double scale);

/// Losses and gradient at once, for rows that fit the cache. `dlogits` may be `logits`, or bf16 for f32
/// logits.
void softmax_losses_and_gradient(const Tensor& dlogits, std::span<double> losses, const Tensor& logits,
                                 std::span<const std::int64_t> labels, double scale);

}  // namespace nemocube::cpu
