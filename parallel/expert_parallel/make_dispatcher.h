#pragma once
#include <memory>

#include "model/blocks/moe/expert_dispatcher.h"
#include "parallel/expert_parallel/expert_groups.h"

namespace nemocube {

enum class DispatcherKind {
  local,      ///< LocalDispatcher: all experts are here
  allgather,  ///< AllGatherDispatcher
  alltoall,   ///< AllToAllDispatcher
};

/// The dispatcher of one MoE block with `experts` experts. A group tp_ep of one rank gets LocalDispatcher,
/// since there is nothing to exchange. Error unless ep divides `experts`, and where `local` is asked for on
/// several ranks.
std::unique_ptr<ExpertDispatcher> make_dispatcher(DispatcherKind kind, std::int64_t experts,
                                                  const ExpertGroups& groups);

}  // namespace nemocube
