#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

/// What a program asked of its devices, in the order of its calls: streams, events and waits, without any time.
namespace emulator::timeline {

/// What an operation does, as far as its time depends on it.
struct Load {
  enum class Kind : std::uint8_t {
    point,     ///< an event, a wait for one, the ends of a graph: no time
    kernel,    ///< by its counters
    product,   ///< of matrices, by cuBLAS
    upload,    ///< from the host's memory
    download,  ///< into the host's memory
    local,     ///< a copy or fill within the device's memory, or work of a library that only moves bytes
    host,      ///< a function of the program on the host, which takes no time here
    exchange   ///< NCCL: Operation::transfers
  };
  Kind kind = Kind::point;
  double bytes = 0;  ///< read from and written to DRAM; of a copy from or to the host, those copied
  // Of a kernel, by all its blocks:
  double l2_bytes = 0, tensor_multiply_adds = 0, multiply_adds = 0, wavefronts = 0, instructions = 0;
  double blocks = 1, resident = 1;  ///< of a launch; of a multiprocessor at once
};

/// What NCCL moves in one call, as one rank takes part in it. Calls of the ranks of a communicator that have the same key are
/// one transfer.
struct Transfer {
  enum class Kind : std::uint8_t {
    all_reduce,
    reduce,
    broadcast,
    all_gather,
    reduce_scatter,
    all_to_all,
    gather,
    scatter,
    message
  };
  Kind kind = Kind::message;
  std::uint64_t communicator = 0;
  int rank = 0, ranks = 1;     ///< of the communicator
  int source = 0, target = 0;  ///< of a message
  std::uint64_t number = 0;    ///< of the collective, or of the message from `source` to `target`
  double bytes = 0;  ///< all_reduce, reduce, broadcast, message: of the buffer; others: of one rank's share
};

struct Operation {
  std::uint64_t id = 0;  ///< of the process, from 1 in the order of calls
  int device = 0;
  std::uint64_t stream = 0;
  std::string name;
  std::string range;  ///< NVTX ranges of the calling thread, "outer > inner"
  Load load;
  std::vector<Transfer> transfers;
  std::uint64_t before = 0;          ///< the operation before it in its stream; 0: none
  std::vector<std::uint64_t> after;  ///< what it waits for besides
};

/// What a thread of the program did: it sent an operation or waited for some.
struct HostStep {
  enum class Kind : std::uint8_t { launch, product, exchange, copy, event, timed_event, graph, memory, wait };
  Kind kind = Kind::launch;
  std::vector<std::uint64_t> operations;
};

struct Process {
  std::int64_t pid = 0;
  int rank = 0;  ///< among the processes that were started together
  std::vector<Operation> operations;
  std::map<std::uint64_t, std::vector<HostStep>> threads;
};

}  // namespace emulator::timeline
