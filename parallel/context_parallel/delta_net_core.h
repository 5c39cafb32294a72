#pragma once
#include "model/blocks/gated_delta_net/gated_delta_net.h"
#include "parallel/comm/communicator.h"

/// Gated DeltaNet blocks over the ranks of a context-parallel group.
namespace nemocube {

/// y = core(qkv, a, b) as run_dealt() computes it, from the q, k, v, a and b of each rank's heads, with the
/// rank's part of the parameters. The gradients of conv1d, A_log and dt_bias are zero outside of the rank's
/// part: their sum over the ranks is the gradient. Ranks that share a key head each add their part.
/// Arithmetic, dtypes and kept values are as in DeltaNetCore. In a group of one rank this is the core
/// itself.
///
/// Elements sent, all c ranks together, with T rows of the microbatch and per rank n value heads of P
/// channels and g key heads of N: forward (c - 1) T (2 n P + 2 g N + 2 n), backward as many.
DeltaNetCoreRunner context_parallel_delta_net(Communicator& cp);

}  // namespace nemocube
