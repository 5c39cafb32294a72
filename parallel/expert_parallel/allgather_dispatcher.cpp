#include "parallel/expert_parallel/allgather_dispatcher.h"

#include <span>

#include "core/host_wait.h"
#include "ops/permute/permute.h"
#include "parallel/mappings/mappings.h"

namespace nemocube {
namespace {

/// The choices of all ranks' tokens, one rank after another.
Tensor gathered_choices(const Tensor& own, std::span<const std::int64_t> tokens, Communicator& group) {
  const std::int64_t choices = own.cols();
  std::vector<std::int64_t> counts;
  std::int64_t all = 0;
  for (const std::int64_t t : tokens) {
    counts.push_back(t * choices);
    all += t;
  }
  const Tensor gathered = Tensor::empty({all, choices}, DType::i32, own.device());
  group.all_gather_v(gathered, own.as_contiguous(), counts);
  return gathered;
}

}  // namespace

DispatchedRows AllGatherDispatcher::dispatch(Context& ctx, const Var& x, const Routing& routing,
                                             std::int64_t experts, Tensor& host) {
  Communicator& group = groups_.tp_ep;
  const Range here = experts_of(experts, groups_.ep.size(), groups_.ep.rank());
  const Tensor& own = routing.choice.experts;
  const std::vector<std::int64_t> tokens = group.host_all_gather(own.rows());

  const HostWaitName name(expert_rows_wait);
  std::optional<std::int64_t> known;
  if (host) known = host.item<std::int64_t>();
  const Permutation order = make_permutation(gathered_choices(own, tokens, group), experts, here, known);
  host = Tensor::from<std::int64_t>({order.source.numel()}, {1});
  const Var rows = all_rows(ctx, x, tokens, group, Consumer::cut);
  const Var weights = all_rows(ctx, routing.weights, tokens, group, Consumer::cut);
  return {[received = permute(ctx, rows, order)](Context&) { return received; },
          order.offsets,
          {},
          [&group, order, tokens, weights](Context& c, const Var& results) {
            return sum_to_own_rows(c, unpermute(c, results, weights, order), tokens, group);
          }};
}

}  // namespace nemocube
