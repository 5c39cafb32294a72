#include "parallel/expert_parallel/alltoall_dispatcher.h"

#include <numeric>

#include "core/host_wait.h"
#include "ops/permute/permute.h"
#include "parallel/mappings/mappings.h"

namespace nemocube {
namespace {

using Rows = std::vector<std::int64_t>;

/// The rows for each expert of the ranks of tp_ep, on the host.
class RowCounts {
 public:
  /// ends [ranks of tp_ep, E], in host memory: see merge_by_expert().
  RowCounts(const Tensor& ends, const ExpertGroups& groups) : groups_(groups), ends_(ends) {}

  Range experts_at(std::int64_t place) const { return experts_of(ends_.cols(), groups_.ep.size(), place); }
  Range experts_here() const { return experts_at(groups_.ep.rank()); }
  /// The rows of the rank at (slice of expt_tp, place of ep) for some of the experts.
  std::int64_t sum_of(std::int64_t slice, std::int64_t place, Range experts) const {
    const auto* ends = ends_.row<std::int64_t>(slice + groups_.expt_tp.size() * place);
    const auto end = [&](std::int64_t expert) { return expert > 0 ? ends[expert - 1] : 0; };
    return end(experts.end) - end(experts.begin);
  }
  /// [experts here + 1] i64: where the rows of each expert here begin, of all ranks together.
  Tensor offsets_here() const {
    const Range here = experts_here();
    Rows offsets{0};
    for (std::int64_t expert = here.begin; expert < here.end; ++expert) {
      offsets.push_back(offsets.back());
      for (std::int64_t slice = 0; slice < groups_.expt_tp.size(); ++slice)
        for (std::int64_t place = 0; place < groups_.ep.size(); ++place)
          offsets.back() += sum_of(slice, place, {expert, expert + 1});
    }
    return Tensor::from(offsets, {std::ssize(offsets)});
  }

 private:
  const ExpertGroups& groups_;
  Tensor ends_;
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

/// `ends` with the ranks in the order in which their rows arrive: by slice, then by place.
Tensor by_slice(const Tensor& ends, const ExpertGroups& groups) {
  const std::int64_t slices = groups.expt_tp.size(), places = groups.ep.size(), experts = ends.cols();
  if (slices == 1 || places == 1) return ends;
  const Tensor ordered = Tensor::empty({slices, places, experts}, ends.dtype(), ends.device());
  for (std::int64_t slice = 0; slice < slices; ++slice)
    ordered.select(slice).copy_from(
        ends.reshape({places, slices, experts}).narrow(1, slice, 1).reshape({places, experts}));
  return ordered.reshape(ends.shape());
}

}  // namespace

DispatchedRows AllToAllDispatcher::dispatch(Context& ctx, const Var& x, const Routing& routing,
                                            std::int64_t experts, Tensor& host) {
  const Permutation order = make_permutation(routing.choice.experts, experts);
  const Tensor ends = gathered_counts(order.offsets.narrow(0, 1, experts), groups_.tp_ep);
  if (!host) {
    const HostWaitName name(expert_rows_wait);
    host = ends.to(Device::cpu);  // the host makes messages of these lengths
  }
  const RowCounts counts(host, groups_);
  const Routes routes = make_routes(counts, groups_);
  const Permutation by_expert =
      merge_by_expert(by_slice(ends, groups_), counts.experts_here(),
                      std::accumulate(routes.slices.begin(), routes.slices.end(), std::int64_t{0}));

  const RowExchange exchange(ctx, permute(ctx, x, order), routes.sent, routes.received, groups_.ep);
  return {[groups = groups_, exchange, routes, by_expert](Context& c) {
            const Var rows = all_rows(c, exchange.finish(c), routes.slices, groups.expt_tp, Consumer::cut);
            return permute(c, rows, by_expert);
          },
          by_expert.offsets, counts.offsets_here(),
          [groups = groups_, order, routes, by_expert, weights = routing.weights](Context& c,
                                                                                  const Var& results) {
            Var back = permute(c, results, inverse(by_expert));
            back = sum_to_own_rows(c, back, routes.slices, groups.expt_tp);
            back = exchange_rows(c, back, routes.received, routes.sent, groups.ep);
            return unpermute(c, back, weights, order);
          }};
}

}  // namespace nemocube
