#pragma once
#include "core/autograd.h"
#include "ops/cross_entropy/grad_scale.h"
#include "ops/cross_entropy/labels.h"
#include "ops/cross_entropy/logit_options.h"
#include "ops/vocabulary_part.h"

/// Cross-entropy against labels that are already shifted: labels[t] is the target of logits[t]; -100 marks
/// rows that do not count. Losses are sums over the labelled rows, not means: the caller divides by the label
/// count of the whole batch over all devices, which is known before the step.
///
/// weights    of Labels: loss[t] and dz[t] are multiplied by w[t], a z loss included
/// labels     Labels on the device of the logits, one for each row; -100 or in [0, V), where V counts the
///            tokens of the whole vocabulary. The caller checks labels; here the logit of a token outside of
///            the vocabulary counts as 0
/// devices    CPU, CUDA (without f64)
/// result     shape [], f32 (f64 for f64); 0 when no row is labelled
/// arithmetic exponentials and sums over the vocabulary in f32 (f64 for f64); row losses are added in f64 in
///            row order, on CUDA in another fixed order
///
/// With LogitOptions the loss is of z' in place of z, and the gradients are
///     dz = dz' (1 - (z'/c)^2)        db = sum of dz over the rows
/// z' is formed as z is read, in the dtype of the arithmetic, and is not stored.
///
/// The z loss (w = z_loss_weight of LogitOptions) keeps the largest logit m = max_v z'[v] of labelled rows
/// small. With a tape and without
///     loss += w m^2                dz'[v] += 2 w m grad_scale dloss        at the first v of z'[v] = m
/// Its gradient costs two more passes over the logits; the loss alone costs none. Source: Baichuan 2, whose
/// own code takes the mean of m^2 over all rows, labelled or not.
///
/// The vocabulary may be cut over ranks (VocabularyPart). Each rank then passes the logits of its own tokens,
/// and all pass the same labels. For each row, with sums and maximum over the ranks as well:
///     m = max_v z[v]        S = sum_v e^(z[v] - m)        y = sum of z[label] where the rank has the label
///     loss = m - y + log S                   dz[v] = grad_scale dloss (e^(z[v] - m) / S - [v = label])
/// messages   for each block of rows a maximum [rows] of m and a sum [rows, 2] of S and y, in the dtype of
///            the arithmetic; where a z loss has a gradient then a maximum [rows], f64, by which the ranks
///            agree on the first v; none when there are no rows, and none in backward
/// loss       of the whole vocabulary, with the same bits on every rank
/// gradients  of the rank's own logits
/// source     vocab-parallel cross-entropy of NVIDIA/Megatron-LM, with the two sums in one message
namespace nemocube {

/// loss = sum_t lse(z[t]) - z[t, labels[t]]
/// dz[t, v] = grad_scale dloss (softmax(z[t])_v - [v = labels[t]])
///
/// shapes     logits z [..., V], or, for a `part`, [..., its tokens]; dtypes f32, f64 or bf16; ignored rows
///            get gradient 0
/// gradient   formed with the loss where a tape records: logits are read once, dz / dloss is written once,
///            and the tape holds it in place of the logits. Backward multiplies it by dloss, which costs a
///            pass and a rounding to its dtype unless dloss is 1
/// options    see above. The bias has the dtype of the logits. db sums dz as it is stored, in f32 (f64 for
///            f64), in an order that depends on the number of rows alone
/// messages   one block of all rows
/// errors     Error for logits without a dimension or of no floating dtype, labels of another number, options
///            as check_logit_options() says
Var cross_entropy(Context& ctx, const Var& logits, const Labels& labels, const GradScale& grad_scale = 1,
                  const VocabularyPart& part = {}, const LogitOptions& options = {});

}  // namespace nemocube
