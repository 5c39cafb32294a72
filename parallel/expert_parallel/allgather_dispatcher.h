#pragma once
#include "model/blocks/moe/expert_dispatcher.h"
#include "parallel/expert_parallel/expert_groups.h"

namespace nemocube {

/// Every rank gets the rows, choices and weights of all tokens of tp_ep, and permutes the rows of its own
/// experts. Each rank forms the weighted sums of its own experts' results for all tokens, zeros for tokens
/// that chose other experts only; a token's rank gets the sum over ranks. Nothing is dropped or padded. All
/// ranks of tp_ep call dispatch() and combine together, each with its own tokens, possibly none.
///
/// arithmetic The sum over a token's experts is formed within each rank, ascending j, f32, rounded to the
///            dtype of the rows; then over ranks in their order, slices of
///            experts (expt_tp) included. Other layouts of ep round
///            differently, unlike with AllToAllDispatcher
/// host       waits once, for the number of rows of this rank's experts, unless all experts are here; hosts
///            tell each other how many tokens they have
/// bytes      a rank of n in tp_ep with T of A tokens, k choices, s bytes for each element of a row, w of a
///            weight
///              forward    (n - 1) (8 + T (d s + k (4 + w))) + (A - T) d s
///              backward   (n - 1) T d s + (A - T) (d s + k w)
/// errors     Error unless ep divides the experts; as ops/permute
/// Source: Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py, MoEAllGatherTokenDispatcher.
class AllGatherDispatcher final : public ExpertDispatcher {
 public:
  /// The groups must outlive all tapes that record a dispatch.
  explicit AllGatherDispatcher(const ExpertGroups& groups) : groups_(groups) {}
  DispatchedRows dispatch(Context& ctx, const Var& x, const Routing& routing, std::int64_t experts,
                          Tensor& host) override;

 private:
  ExpertGroups groups_;
};

}  // namespace nemocube
