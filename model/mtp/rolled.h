#pragma once
#include "ops/sequences.h"

namespace nemocube {

/// Ids or labels [T], i64 in host memory, as depth k of multi-token prediction has them:
/// rolled[t] = tokens[t + k] inside each sequence, and `fill` in its last k rows. Labels are filled with
/// ignored_label. The fill of ids changes no loss: models are causal, so a filled row changes only rows
/// without label. Routers count a filled row as any other.
Tensor rolled(const Tensor& tokens, const Sequences& sequences, std::int64_t k, std::int64_t fill);

}  // namespace nemocube
