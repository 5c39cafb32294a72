#pragma once
#include <optional>

#include "core/autograd.h"
#include "core/rng.h"

namespace nemocube {

enum class DropoutPosition {
  pre,  ///< of the input x, before A: PEFT's
  post  ///< of the branch, after B: AutoModel's default
};

/// Inverted dropout: an element is 0 with the given probability, else multiplied by 1 / (1 - probability).
///
/// Whether an element is dropped depends on the stream and on the numbers of its row and column alone, not on
/// the layout, the device or the number of threads.
struct LoraDropout {
  double probability = 0;  ///< in [0, 1), rounded to a multiple of 2^-32
  DropoutPosition position = DropoutPosition::post;
  std::optional<RandomStream> stream{};  ///< one for each adapted weight
  /// i64 [T], on the device of x: the number of each row among the rows of all steps, so that no two steps
  /// drop alike. A captured CUDA graph reads the numbers that are there when it runs.
  Tensor row_numbers{};
  /// i64 [in] for `pre`, [out] for `post`, on the device of x: the number of each column in the whole weight.
  /// Undefined: 0, 1, ..
  Tensor column_numbers{};
};

/// A low-rank branch: its parameters and its dropout.
struct LoraBranch {
  Var a, b;
  double scale = 1;
  LoraDropout dropout{};
};

/// y <- y + s B A x: the low-rank branch of an adapted linear
/// layer, added to the layer's product in place.
///
///     u = s A pre(x)      y[t] <- y[t] + post(B u)
///     w = s B^T post(g)   dx = pre(A^T w),   dA = sum_t w pre(x)^T,   dB = sum_t post(g) u^T
///
/// g is the gradient of y, and the branch's as well. pre and post are the dropout at the position that it
/// has, and the identity at the other.
///
/// shapes     x [..., in], A [r, in], B [out, r], y [..., out]; T rows in all; sizes may be 0
/// dtypes     x and y alike: f32, f64 or bf16. A and B the same, or f32 for x of bf16: then they are rounded
///            to bf16 for the products, their gradients are not
/// arithmetic sums in f32 (f64 for f64); u and w are rounded once, s included; with dropout, the branch and
///            its part of dx are rounded before
///            they are added
/// layout     row strides of x, y, A and B free
/// aliasing   y may overlap no other operand, and nobody may have kept its value: y is fresh from linear()
/// gradients  The result has the node of y where y has one: backward reads the gradient of y before the
///            operation that made y takes it. dx first; dA and dB are weight work (Tape). Keeps x for dA, u
///            [T, r] for dB (r / in of x, while a second A x would read x again), A and B. Where A and B are
///            no leaves, their bf16 gradients are rounded after each chunk of dropout
/// memory     with dropout at most 4 Mi elements, or 64 rows, of the branch or of the dropped x at a time. No
///            branch is formed without dropout
/// errors     Error for shapes, dtypes, devices or a dropout that do not fit; std::logic_error for a leaf y
/// source     Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021
Var add_lora(Context& ctx, const Var& y, const Var& x, const LoraBranch& branch);
/// The same in values alone. y may have the accumulation type of x.
void add_lora_values(const Tensor& y, const Tensor& x, const LoraBranch& branch);

/// add_lora() for each group of rows (the experts of a mixture), without dropout:
/// y[t] <- y[t] + s B[e] A[e] x[t],   offsets[e] <= t < offsets[e + 1]
///
/// shapes     x [R, in], A [E, r, in], B [E, out, r], y [R, out]; offsets [E + 1] i64, as for
///            grouped_linear(), which also says when `host_offsets` are needed. On CUDA tensor cores want r
///            to be a multiple of 8
/// gradients  as above; the gradients of A and B of a group without rows are zero
/// variants   as chosen for grouped_linear
Var add_grouped_lora(Context& ctx, const Var& y, const Var& x, const Tensor& offsets, const Var& a,
                     const Var& b, double scale, const Tensor& host_offsets = {});

}  // namespace nemocube
