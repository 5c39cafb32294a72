#include <doctest/doctest.h>

#include "parallel/expert_parallel/allgather_dispatcher.h"
#include "parallel/expert_parallel/alltoall_dispatcher.h"
#include "parallel/expert_parallel/make_dispatcher.h"
#include "parallel/expert_parallel/test_grids.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("make_dispatcher: the kind that was asked for, local where there is nothing to exchange") {
  on_expert_grids([](const ExpertGrid& grid) {
    const ExpertGroups groups = grid.groups();
    const std::int64_t experts = 2 * groups.ep.size();
    const auto allgather = make_dispatcher(DispatcherKind::allgather, experts, groups);
    const auto alltoall = make_dispatcher(DispatcherKind::alltoall, experts, groups);
    const bool several = groups.tp_ep.size() > 1;
    CHECK((dynamic_cast<AllGatherDispatcher*>(allgather.get()) != nullptr) == several);
    CHECK((dynamic_cast<AllToAllDispatcher*>(alltoall.get()) != nullptr) == several);
    CHECK((dynamic_cast<LocalDispatcher*>(alltoall.get()) != nullptr) == !several);
    if (!several) CHECK(make_dispatcher(DispatcherKind::local, experts, groups) != nullptr);
    if (several) {
      CHECK(message_of([&] { make_dispatcher(DispatcherKind::local, experts, groups); }) ==
            cat("dispatcher local wants all experts on each rank; distributed.ep_size is ", groups.ep.size(),
                ", distributed.expert_tp_size is ", groups.expt_tp.size(),
                "; want allgather or alltoall, or both sizes 1"));
      CHECK_THROWS_AS(ExpertGroups(groups.tp_ep, groups.tp_ep, groups.tp_ep), std::logic_error);
    }
    if (groups.ep.size() > 1)
      CHECK_THROWS_AS(make_dispatcher(DispatcherKind::alltoall, experts + 1, groups), Error);
  });
}

TEST_CASE("experts of a rank: consecutive; sizes that do not divide say which would") {
  CHECK(experts_of(6, 3, 0) == Range{0, 2});
  CHECK(experts_of(6, 3, 2) == Range{4, 6});
  CHECK(message_of([] { experts_of(6, 4, 0); }) ==
        "distributed.ep_size is 4; n_routed_experts is 6; want a divisor: 1, 2, 3 or 6");
  CHECK(message_of([] { experts_of(1, 2, 0); }) ==
        "distributed.ep_size is 2; n_routed_experts is 1; want a divisor: 1");
}
