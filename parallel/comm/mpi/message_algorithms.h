#pragma once
#include <cstdint>

#include "parallel/comm/collective.h"
#include "parallel/comm/comm_engine.h"
#include "parallel/comm/mpi/transport.h"

namespace nemocube {

/// Up to here latency counts more than bytes in all_reduce and broadcast.
constexpr std::int64_t latency_bound_bytes = 4096;

/// A collective of tensors in host memory, and the ranks whose messages make it.
struct MessageCall {
  const Communicator& communicator;
  const MessageGroup& group;  ///< of the communicator's ranks
  CommEngine& engine;
  const Collective& call;
  CallsFrom from;
  std::int64_t storage_bytes = 0;  ///< that ranks of this communicator alone write or read now
};

/// Executes a collective by messages between pairs of ranks. Every rank sends directly to every other one,
/// rank r first to r + 1. With n ranks and N bytes, all ranks together send
///   all_reduce      2 (n - 1) N: each rank adds one part of N / n and sends the sum to all. Up to 4 KiB
///                   each rank sends all to all, n (n - 1) N, and adds everything: half the latency
///   reduce_scatter  (n - 1) N, the first half of all_reduce; N counts the input of one rank
///   all_gather      (n - 1) N; N counts the output
///   broadcast       (n - 1) N: above 4 KiB the root sends each rank a part, which it sends to all others
///   all_to_all      every part but the one that a rank keeps
///   barrier         messages without content
/// Nothing is padded: parts differ by one element where N does not divide. The
/// caller holds the transport's mutex where the call is from the main thread.
/// With CommOptions::check_collectives the ranks compare their calls first.
/// Returns the bytes and times of the call.
/// errors  Error naming the call, the group and the ranks: after CommOptions::timeout_seconds without a
///         message, where calls or sizes of ranks differ, and where another failure ends the job
CommStats run_by_messages(const MessageCall& call);

/// Throws Error where the ranks' calls differ: operation, number, dtype, counts, reduction or root. All ranks
/// of the group compare at the same call.
void compare_calls(const MessageCall& call);

/// Error where another failure of this process has begun to end the job.
void require_going_on(const CommEngine& engine);

}  // namespace nemocube
