#pragma once
#include "ops/router/router_cpu.h"

namespace nemocube {

/// Sets the auxiliary losses of `routing`, whose experts are chosen, as route() defines them; returns what
/// the backward pass adds for them. logits and scores [T, E].
cpu::AuxGradient auxiliary_losses(const Context& ctx, Routing& routing, const Tensor& logits,
                                  const Tensor& scores, const Tensor& bias, const RouterOptions& options,
                                  const Sequences& sequences, RouterTotals* totals);

}  // namespace nemocube
