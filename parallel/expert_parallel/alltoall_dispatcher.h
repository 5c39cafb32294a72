#pragma once
#include "model/blocks/moe/expert_dispatcher.h"
#include "parallel/expert_parallel/expert_groups.h"

namespace nemocube {

/// Each token's row goes to the ranks of its chosen experts, once for each choice, and each result comes back
/// to the token's rank. Nothing is dropped or padded. All ranks of tp_ep call dispatch() and combine
/// together, each with its own tokens, possibly none.
///
///   1 permute         rows of this rank by (expert, token)
///   2 gather counts   of each expert's rows, over tp_ep: the one thing for which the host waits
///   3 exchange rows   over ep; then, with expt_tp > 1, all_rows over expt_tp: each slice of an expert sees
///                     the tokens of all ranks that hold a slice
///   4 permute         (source expt_tp, source ep, expert) -> (expert, source expt_tp, source ep), stable
///   the experts of this rank; then back: 4, sum_to_own_rows over expt_tp (the results of slices are added),
///   3
///   5 unpermute       y[t] = sum over j of weights[t, j] result of choice j
///
/// arithmetic Step 5 is as in LocalDispatcher: on the token's rank, ascending j, f32, rounded once. The rows
///            of an expert are in the order of ranks and, within a rank, of
///            tokens. Results of slices are added in the order of ranks, in
///            f32, and rounded to the dtype of the rows.
/// bytes      a rank sends, with s bytes for each element of a row:
///              counts    8 E (n - 1), n ranks in tp_ep
///              ep        (S + V) d s forward, the same backward; S: its rows for other ep ranks, V: rows
///                        from them
///              expt_tp   ((x - 1) Q + (A - Q)) d s forward, the same backward; x ranks in expt_tp, Q: rows
///                        after the exchange over ep, A: the Q of all x ranks together
/// errors     Error unless ep divides the experts; as ops/permute. Ranks that disagree about counts stop: a
///            message of another length than its receiver expects is an Error (parallel/comm/communicator.h)
/// Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher.
class AllToAllDispatcher final : public ExpertDispatcher {
 public:
  /// The groups must outlive all tapes that record a dispatch.
  explicit AllToAllDispatcher(const ExpertGroups& groups) : groups_(groups) {}
  DispatchedRows dispatch(Context& ctx, const Var& x, const Routing& routing, std::int64_t experts,
                          Tensor& host) override;

 private:
  ExpertGroups groups_;
};

}  // namespace nemocube
