#pragma once
#include <cstdint>

#include "core/autograd.h"

/// Cross-entropy against labels that are already shifted: labels[t] is the target of logits[t]; -100 marks
/// rows that do not count. Losses are sums over the labelled rows, not means: the caller divides by the label
/// count of the whole batch over all devices, which is known before the step.
///
/// labels     i64, contiguous, one for each row; -100 or in [0, V); otherwise Error naming label and position
/// result     shape [], f32 (f64 for f64); 0 when no row is labelled
/// arithmetic exponentials and sums over the vocabulary in f32 (f64 for f64); row losses are added in f64 in
///            row order
namespace nemocube {

constexpr std::int64_t ignored_label = -100;

/// Number of labels other than -100.
std::int64_t count_labels(const Tensor& labels);

/// loss = sum_t lse(z[t]) - z[t, labels[t]]
/// dz[t, v] = grad_scale dloss (softmax(z[t])_v - [v = labels[t]])
///
/// shapes     logits z [..., V]; dtypes f32, f64 or bf16; ignored rows get gradient 0
Var cross_entropy(Context& ctx, const Var& logits, const Tensor& labels, double grad_scale = 1);

}  // namespace nemocube
