#include "parallel/expert_parallel/make_dispatcher.h"

#include "parallel/expert_parallel/allgather_dispatcher.h"
#include "parallel/expert_parallel/alltoall_dispatcher.h"

namespace nemocube {

std::unique_ptr<ExpertDispatcher> make_dispatcher(DispatcherKind kind, std::int64_t experts,
                                                  const ExpertGroups& groups) {
  if (groups.tp_ep.size() == 1) return std::make_unique<LocalDispatcher>();
  require(kind != DispatcherKind::local,
          "dispatcher local wants all experts on each rank; distributed.ep_size is ", groups.ep.size(),
          ", distributed.expert_tp_size is ", groups.expt_tp.size(),
          "; want allgather or alltoall, or both sizes 1");
  experts_of(experts, groups.ep.size(), groups.ep.rank());
  if (kind == DispatcherKind::allgather) return std::make_unique<AllGatherDispatcher>(groups);
  return std::make_unique<AllToAllDispatcher>(groups);
}

}  // namespace nemocube
