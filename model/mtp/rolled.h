#pragma once
#include "ops/sequences.h"

namespace nemocube {

/// Ids or labels [T], i64 in host memory, as depth k of multi-token prediction has them:
/// rolled[t] = tokens[t + k] inside each sequence, and `fill` in its last k rows. Labels are filled with
/// ignored_label. What ids are filled with matters to no loss: models are causal, so such a row changes only
/// rows without label. Routers count such a row as any other.
Tensor rolled(const Tensor& tokens, const Sequences& sequences, std::int64_t k, std::int64_t fill);

}  // namespace nemocube
