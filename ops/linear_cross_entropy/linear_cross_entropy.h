#pragma once
#include <cstdint>

#include "ops/cross_entropy/cross_entropy.h"
#include "ops/lora/lora.h"

namespace nemocube {

/// loss = cross_entropy(x weight^T, labels), and `grad_scale` times its gradients.
///
/// shapes     x [..., in], weight [V, in], dtypes alike: f32, f64 or bf16
/// labels     as for cross_entropy, one for each row of x
/// variants   of "cross_entropy": "fused" (default) gathers the labelled rows and forms logits, loss and
///            gradients for `chunk_rows` of them at a time, so that at most chunk_rows x V logits (f32 for
///            bf16 operands) exist at any time. Gradients are formed in the forward pass: the gradient of the
///            weight is added to the leaf at once, the gradient of x is kept until backward. Error unless
///            chunk_rows >= 1. "plain" is linear followed by cross_entropy, with all logits in the dtype of x
/// backward   the gradient that arrives is taken as 1, without a look: scale the loss through `grad_scale`
/// part       of a vocabulary that is cut over ranks, as for cross_entropy; x and chunk_rows are then the
///            same on every rank, and weight [own tokens, in] holds the rank's rows. A block of rows of the
///            messages is a chunk ("fused") or all rows ("plain"). dW is that of the rank's rows. dx sums
///            over the rank's tokens only: the caller adds the dx of all ranks
/// adapter    null: none. Else the branch of add_lora() is part of the logits: W + s B A in the place of the
///            weight. B holds the rank's tokens, A is whole, and its gradient sums over the rank's tokens
///            only, as dx does
/// token_losses  null: not wanted. Else the loss of each of labels.rows without its z loss, which is
///            -log softmax(z')[label]: set to a tensor [labels.count()], f64, on the device of x, with 0 in
///            places of a capacity that are left. Not differentiable. The rows are then formed in chunks by
///            every variant. Of a cut vocabulary every rank gets all of them, with the same bits
/// options    of the logits (LogitOptions), as for cross_entropy, after the adapter: z' is formed as a chunk
///            of z is read. The bias has the dtype of the weight. Its gradient is added to a leaf at once,
///            too; "fused" sums dz chunk by chunk, in order. A rank of a cut vocabulary has the bias of its
///            own tokens. A z loss is that of the same z', and costs its message for each chunk
Var linear_cross_entropy(Context& ctx, const Var& x, const Var& weight, const Labels& labels,
                         const GradScale& grad_scale, std::int64_t chunk_rows,
                         const VocabularyPart& part = {}, const LoraBranch* adapter = nullptr,
                         const LogitOptions& options = {}, Tensor* token_losses = nullptr);

}  // namespace nemocube
