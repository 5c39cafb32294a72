#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/trace.h"
#include "parallel/comm/communicator.h"

/// One call of an operation, checked: what a backend of Communicator executes.
namespace nemocube {

struct Collective {
  Operation operation = Operation::barrier;
  std::int64_t number = 0;  ///< calls of the group before this one; exchanges are numbered apart
  DType dtype = DType::u8;
  Reduction reduction = Reduction::sum;
  int root = -1;                         ///< of a broadcast
  Tensor in, out;                        ///< the same tensor for all_reduce and broadcast
  std::vector<std::int64_t> in_counts;   ///< reduce_scatter, all_to_all: elements of `in` for each rank
  std::vector<std::int64_t> out_counts;  ///< all_gather, all_to_all: elements of `out` from each rank
  std::int64_t row = 0;                  ///< all_to_all: elements of a row
  std::vector<Send> sends;               ///< of an exchange
  std::vector<Receive> receives;         ///< of an exchange
};

/// "all_reduce number 7 (sum, f32, 1024 elements)". Ranks whose calls belong together have the same text.
std::string describe(const Collective& call);

/// The call in a trace, without times and row. `group` lives as long as the process.
trace::Event traced_collective(const Collective& call, const char* group, const CommStats& stats);

/// A number of what ranks whose calls belong together have in common. Other calls mostly have another one.
std::uint32_t fingerprint(const Collective& call);

/// Sends and receives that begin and end together.
struct GroupedMessages {
  std::vector<Send> sends;
  std::vector<Receive> receives;
};
/// What an all_gather, all_to_all or exchange is on this rank, messages to itself included; nothing for other
/// operations. Parts of tensors are one-dimensional.
GroupedMessages grouped_messages(const Collective& call, int rank);

/// The fewest bytes that rank `rank` of `size` can send to others in the call. They are those in the table of
/// mpi/message_algorithms.h for calls of more than latency_bound_bytes; what NCCL sends depends on its
/// algorithm.
std::int64_t bytes_for_others(const Collective& call, int rank, int size);

/// Delivers the messages of the rank to itself.
void copy_own_messages(const GroupedMessages& messages, int rank);

/// Copies tensors of the same number of elements and dtype on one device, unless they are the same memory.
void copy_elements(const Tensor& to, const Tensor& from);

/// Start of each part in bytes, and the end of the last one.
std::vector<std::int64_t> byte_offsets(const std::vector<std::int64_t>& counts, DType dtype);

}  // namespace nemocube
