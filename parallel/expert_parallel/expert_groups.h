#pragma once
#include <string>

#include "core/shard.h"
#include "parallel/comm/communicator.h"

namespace nemocube {

/// The groups in which a rank meets the others that hold experts of the same layers
/// (parallel/comm/process_groups.h). The tokens of a group tp_ep meet all experts.
struct ExpertGroups {
  Communicator& ep;       ///< ranks with other experts
  Communicator& expt_tp;  ///< ranks with other slices of the same experts' inner width
  Communicator& tp_ep;    ///< both; expt_tp varies fastest

  /// std::logic_error unless tp_ep is the product of the other two, and this rank has the same place in both.
  ExpertGroups(Communicator& ep_group, Communicator& expt_tp_group, Communicator& tp_ep_group);
};

/// The divisors of n > 0 for a message: "1, 2, 3 or 6".
std::string divisors_of(std::int64_t n);

/// The name of the single wait of the host for the device in a dispatch (core/host_wait.h).
inline constexpr const char* expert_rows_wait = "rows of experts";

/// The experts of one ep rank: [rank E / ep, (rank + 1) E / ep). Error unless ep divides E.
Range experts_of(std::int64_t experts, std::int64_t ep_size, std::int64_t ep_rank);

/// The `own` of every rank of the group, [ranks, n], on its device. own [n] i64, n the same everywhere.
Tensor gathered_counts(const Tensor& own, Communicator& group);

}  // namespace nemocube
