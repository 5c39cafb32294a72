#pragma once
#include "ops/router/router_kernels.h"

/// The auxiliary losses of route(). Nothing here reads a tensor on the host.
namespace nemocube {

/// Sets the losses of `routing`, whose experts are chosen and whose losses are 0, and the
/// members that a replay reads, as route() defines them. Returns the gradient that backward adds
/// for the losses. logits and scores [T, E], scores as uses_scores() says.
AuxGradient auxiliary_losses(Routing& routing, const Tensor& logits, const Tensor& scores, const Tensor& bias,
                             const RouterOptions& options, const Sequences& sequences, RouterTotals* totals);
/// The same gradient in a replay, from the factors of the first pass.
AuxGradient replayed_gradient(const RouterChoice& choice, const Tensor& logits, const RouterOptions& options,
                              const Sequences& sequences);

}  // namespace nemocube
