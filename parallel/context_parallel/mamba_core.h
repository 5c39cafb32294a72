#pragma once
#include "model/blocks/mamba/mamba.h"
#include "parallel/comm/communicator.h"

/// Mamba blocks over the ranks of a context-parallel group.
namespace nemocube {

/// y = core(xBC, dt) as run_dealt() computes it, from the x, B, C and dt of each rank's heads, with the
/// rank's part of the parameters.
/// The gradients of conv1d, A_log, D and dt_bias are zero outside of the rank's part: their sum over the
/// ranks is the gradient. Ranks that share a group of B and C each add their part.
/// Arithmetic, dtypes and kept values are as in MambaCore. In a group of one rank this is the core itself.
///
/// Elements sent, all c ranks together, with T rows of the microbatch and per rank n heads of P channels and
/// g groups of N: forward (c - 1) T (2 n P + 2 g N + n), backward as many.
/// Source: Megatron-LM, megatron/core/ssm/mamba_context_parallel.py.
MambaCoreRunner context_parallel_mamba(Communicator& cp);

}  // namespace nemocube
