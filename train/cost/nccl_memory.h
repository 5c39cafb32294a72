#pragma once
#include <cstdint>

#include "parallel/planner/rank_traffic.h"

namespace nemocube {

/// Between which ranks of a group messages go, besides rings and trees.
struct NcclMessages {
  bool to_all = false;         ///< all_to_all
  bool to_neighbours = false;  ///< exchange
};

/// Estimated bytes of device memory that NCCL takes on a rank for its communicator of a
/// group, outside of the allocator of tensors.
///
///   bytes = 12 MiB (24 k + 32 m)     k = min(2, n - 1), the neighbours in a ring of n ranks
///                                    m = min(7, n - 1) where messages go to all, k where they go to
///                                    neighbours, else 0
///
/// A channel has a connection to and from each of these ranks. Where data arrives it takes 10 MiB: the
/// buffers of NCCL's protocols Simple (4 MiB, NCCL_BUFFSIZE), LL128 (4.7 MiB) and LL (0.5 MiB), in pages of 2
/// MiB; where data leaves, one such page. On H100s with NVLink rings and trees have 24 channels, messages 32
/// for each rank of the node of 8. Fewer links have fewer channels. Memory for NVLink SHARP and for
/// connections to other nodes is left out. Sources: NVIDIA, NCCL User Guide, "NCCL_BUFFSIZE";
/// github.com/NVIDIA/nccl, issues 1685 (sizes of allocations, and 3.3 GB for the first all_to_all of 8 H100s,
/// where the formula has 2.8 GB) and 1781 (numbers of channels).
std::int64_t nccl_group_bytes(std::int64_t ranks, const NcclMessages& messages);

/// nccl_group_bytes() of all communicators that a rank has in a run on `ranks` ranks: for the world, and for
/// each group that is not the same ranks as the world or an earlier group (ProcessGroups).
std::int64_t nccl_bytes(const PlannedGroups& groups, std::int64_t ranks, int rank,
                        const RankTraffic::Sums& traffic);

}  // namespace nemocube
