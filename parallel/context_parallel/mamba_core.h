#pragma once
#include "model/blocks/mamba/mamba.h"
#include "model/config.h"
#include "parallel/comm/communicator.h"

/// Mamba blocks over the ranks of a context-parallel group. The recurrence needs whole sequences, so each
/// rank computes the core of a part of the heads for all rows.
namespace nemocube {

/// The part of a Mamba core that one rank computes. Heads of a rank are consecutive. Where a group of B and C
/// serves the heads of several ranks, each of these `sharers` has its own copy.
struct MambaHeadCut {
  std::int64_t heads = 0, groups = 0;  ///< of a rank
  std::int64_t sharers = 1;            ///< neighbouring ranks with the same group
};
/// The cut over cp ranks of a core with these heads and groups (of one tensor-parallel rank). Error unless cp
/// divides the heads, and divides the groups or is a multiple of them; the message names the sizes that work.
MambaHeadCut cut_mamba_heads(std::int64_t heads, std::int64_t groups, std::int64_t cp);

/// Error unless the model can run with these sizes of tensor and context parallelism; see cut_mamba_heads.
/// Attention and the other blocks take any size.
/// pre: tp divides mamba_num_heads, and divides n_groups or is a multiple of it
void check_context_parallel(const ModelSetup& setup, std::int64_t tp, std::int64_t cp);

/// y = core(xBC, dt), where xBC, dt and y are the local rows of each rank
/// (parallel/context_parallel/sequence_cut.h), 0 rows included:
///     each rank sends each other one the x, B, C and dt of its heads, for all local rows, in one message;
///     the rows are put in the order of the sequences; conv1d and scan with the rank's part of the
///     parameters; the rows of y go back
/// The gradients of conv1d, A_log, D and dt_bias are zero outside of the rank's part: their sum over the
/// ranks is the gradient. Ranks that share a group of B and C each add their part.
/// Arithmetic, dtypes and kept values are as in MambaCore; dB and dC of a shared group are
/// added in the order of ranks, in f32 (f64 for f64).
///
/// Every rank of the group makes the same calls in the same order and wants the same gradients. In a group of
/// one rank this is the core itself.
///
/// Elements sent, all c ranks together, with T rows of the microbatch and per rank n heads of P channels and
/// g groups of N: forward (c - 1) T (2 n P + 2 g N + n), backward as many.
/// Source: Megatron-LM, megatron/core/ssm/mamba_context_parallel.py.
MambaCoreRunner context_parallel_mamba(Communicator& cp);

}  // namespace nemocube
