#include "model/blocks/moe/expert_dispatcher.h"

#include "ops/permute/permute.h"

namespace nemocube {

DispatchedRows LocalDispatcher::dispatch(Context& ctx, const Var& x, const Routing& routing,
                                         std::int64_t experts, Tensor&) {
  const Permutation order = make_permutation(routing.choice.experts, experts);
  return {[rows = permute(ctx, x, order)](Context&) { return rows; },
          order.offsets,
          {},
          [order, weights = routing.weights](Context& c, const Var& results) {
            return unpermute(c, results, weights, order);
          }};
}

}  // namespace nemocube
