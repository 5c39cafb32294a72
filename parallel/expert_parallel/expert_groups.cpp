#include "parallel/expert_parallel/expert_groups.h"

namespace nemocube {

std::string divisors_of(std::int64_t n) {
  std::string text = "1";
  for (std::int64_t d = 2; d <= n; ++d)
    if (n % d == 0) text += cat(d == n ? " or " : ", ", d);
  return text;
}

ExpertGroups::ExpertGroups(Communicator& ep_group, Communicator& expt_tp_group, Communicator& tp_ep_group)
    : ep(ep_group), expt_tp(expt_tp_group), tp_ep(tp_ep_group) {
  expect(tp_ep.size() == ep.size() * expt_tp.size() &&
             tp_ep.rank() == expt_tp.rank() + expt_tp.size() * ep.rank(),
         "groups of experts: rank ", tp_ep.rank(), " of ", tp_ep.size(), " in tp_ep; ", expt_tp.rank(),
         " of ", expt_tp.size(), " in expt_tp, ", ep.rank(), " of ", ep.size(), " in ep");
}

Range experts_of(std::int64_t experts, std::int64_t ep_size, std::int64_t ep_rank) {
  require(experts % ep_size == 0, "distributed.ep_size is ", ep_size, "; n_routed_experts is ", experts,
          "; want a divisor: ", divisors_of(experts));
  const std::int64_t own = experts / ep_size;
  return {ep_rank * own, (ep_rank + 1) * own};
}

Tensor gathered_counts(const Tensor& own, Communicator& group) {
  const Tensor all = Tensor::empty({group.size(), own.numel()}, DType::i64, own.device());
  group.all_gather(all, own);
  return all;
}

}  // namespace nemocube
