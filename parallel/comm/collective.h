#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/trace.h"
#include "parallel/comm/communicator.h"

/// One checked call of an operation, which a backend of Communicator executes.
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

/// "all_reduce number 7 (sum, f32, 1024 elements)": the same text on all ranks of one collective.
std::string describe(const Collective& call);

/// The call in a trace, without times and row. `group` lives as long as the process.
trace::Event traced_collective(const Collective& call, const char* group, const CommStats& stats);

/// A number that is the same on all ranks of one collective. Two different calls mostly have two numbers.
std::uint32_t fingerprint(const Collective& call);

/// Sends and receives that begin and end together.
struct GroupedMessages {
  std::vector<Send> sends;
  std::vector<Receive> receives;
};
/// The messages of an all_gather, all_to_all or exchange on this rank, messages to itself included; none for
/// other operations. Parts of tensors are one-dimensional.
GroupedMessages grouped_messages(const Collective& call, int rank);

/// The fewest bytes that rank `rank` of `size` can send to others in the call. For calls of
/// more than latency_bound_bytes the table of mpi/message_algorithms.h has the same
/// figures; NCCL's bytes depend on its algorithm.
std::int64_t bytes_for_others(const Collective& call, int rank, int size);

/// Delivers the messages of the rank to itself.
void copy_own_messages(const GroupedMessages& messages, int rank);

/// Copies tensors of the same number of elements and dtype on one device, unless they are the same memory.
void copy_elements(const Tensor& to, const Tensor& from);

/// Start of each part in bytes, and the end of the last one.
std::vector<std::int64_t> byte_offsets(const std::vector<std::int64_t>& counts, DType dtype);

}  // namespace nemocube
