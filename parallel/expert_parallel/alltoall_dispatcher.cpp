#include "parallel/expert_parallel/alltoall_dispatcher.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "ops/permute/permute.h"
#include "parallel/mappings/mappings.h"

namespace nemocube {
namespace {

using Rows = std::vector<std::int64_t>;

/// offsets [E + 1]: this rank's rows for each expert [E].
Tensor counts_of(const Tensor& offsets) {
  const std::int64_t experts = offsets.numel() - 1;
  const Tensor counts = Tensor::empty({experts}, DType::i64, Device::cpu);
  const auto* at = offsets.data<std::int64_t>();
  for (std::int64_t e = 0; e < experts; ++e) counts.data<std::int64_t>()[e] = at[e + 1] - at[e];
  return counts;
}

/// The rows for each expert of the ranks of tp_ep.
class RowCounts {
 public:
  RowCounts(const Tensor& own, const ExpertGroups& groups)
      : groups_(groups), counts_(gathered_counts(own, groups.tp_ep)) {}

  Range experts_at(std::int64_t place) const { return experts_of(counts_.cols(), groups_.ep.size(), place); }
  Range experts_here() const { return experts_at(groups_.ep.rank()); }
  /// Those of the rank at (slice of expt_tp, place of ep) for some of the experts.
  std::span<const std::int64_t> of(std::int64_t slice, std::int64_t place, Range experts) const {
    const auto* row = counts_.row<std::int64_t>(slice + groups_.expt_tp.size() * place);
    return {row + experts.begin, row + experts.end};
  }
  std::int64_t sum_of(std::int64_t slice, std::int64_t place, Range experts) const {
    const auto counts = of(slice, place, experts);
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  }

 private:
  const ExpertGroups& groups_;
  Tensor counts_;  // [ranks of tp_ep, E]
};

/// How many rows go where, on this rank.
struct Routes {
  Rows sent, received;  // to and from each ep rank
  Rows slices;          // of each expt_tp rank, after its exchange over ep
};

Routes make_routes(const RowCounts& counts, const ExpertGroups& groups) {
  const Range here = counts.experts_here();
  const std::int64_t own_slice = groups.expt_tp.rank(), own_place = groups.ep.rank();
  Routes routes;
  for (std::int64_t place = 0; place < groups.ep.size(); ++place) {
    routes.sent.push_back(counts.sum_of(own_slice, own_place, counts.experts_at(place)));
    routes.received.push_back(counts.sum_of(own_slice, place, here));
  }
  for (std::int64_t slice = 0; slice < groups.expt_tp.size(); ++slice) {
    routes.slices.push_back(0);
    for (std::int64_t place = 0; place < groups.ep.size(); ++place)
      routes.slices.back() += counts.sum_of(slice, place, here);
  }
  return routes;
}

/// [R, 1] i32: for each row that arrives here, its expert among those of this rank.
Tensor experts_of_rows(const RowCounts& counts, const Routes& routes) {
  const std::int64_t rows = std::accumulate(routes.slices.begin(), routes.slices.end(), std::int64_t{0});
  const Tensor experts = Tensor::empty({rows, 1}, DType::i32, Device::cpu);
  auto* at = experts.data<std::int32_t>();
  for (std::size_t slice = 0; slice < routes.slices.size(); ++slice)
    for (std::size_t place = 0; place < routes.received.size(); ++place) {
      std::int32_t expert = 0;
      for (const std::int64_t n : counts.of(static_cast<std::int64_t>(slice),
                                            static_cast<std::int64_t>(place), counts.experts_here()))
        at = std::fill_n(at, n, expert++);
    }
  return experts;
}

}  // namespace

DispatchedRows AllToAllDispatcher::dispatch(Context& ctx, const Var& x, const Routing& routing,
                                            std::int64_t experts) {
  const Permutation order = make_permutation(routing.choice.experts, experts);
  const RowCounts counts(counts_of(order.offsets), groups_);
  const Routes routes = make_routes(counts, groups_);
  const Permutation by_expert =
      make_permutation(experts_of_rows(counts, routes), counts.experts_here().size());

  Var rows = exchange_rows(ctx, permute(ctx, x, order), routes.sent, routes.received, groups_.ep);
  rows = all_rows(ctx, rows, routes.slices, groups_.expt_tp, Consumer::cut);
  return {permute(ctx, rows, by_expert), by_expert.offsets,
          [groups = groups_, order, routes, by_expert, weights = routing.weights](Context& c,
                                                                                  const Var& results) {
            Var back = permute(c, results, inverse(by_expert));
            back = sum_to_own_rows(c, back, routes.slices, groups.expt_tp);
            back = exchange_rows(c, back, routes.received, routes.sent, groups.ep);
            return unpermute(c, back, weights, order);
          }};
}

}  // namespace nemocube
