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

/// loss = sum_t lse(z[t]) - z[t, labels[t]],   dz[t, v] = dloss (softmax(z[t])_v - [v = labels[t]])
///
/// shapes     logits z [..., V]; dtypes f32, f64 or bf16; ignored rows get gradient 0
Var cross_entropy(Context& ctx, const Var& logits, const Tensor& labels);

/// loss = cross_entropy(x weight^T), and `grad_scale` times its gradients.
///
/// shapes     x [..., in], weight [V, in], dtypes alike: f32, f64 or bf16
/// variants   "fused" (default) gathers the labelled rows and forms logits, loss and gradients for
///            `chunk_rows` of them at a time, so that chunk_rows x V logits (f32 for bf16 operands) is all
///            that ever exists of them. Gradients are formed in the forward pass: the weight's is added to
///            the leaf at once, the one of x is kept until backward. Error unless chunk_rows >= 1. "plain"
///            is linear followed by cross_entropy, with all logits in the dtype of x
/// backward   the gradient that arrives must be 1: scale the loss through `grad_scale`
Var linear_cross_entropy(Context& ctx, const Var& x, const Var& weight, const Tensor& labels,
                         double grad_scale, std::int64_t chunk_rows);

}  // namespace nemocube
