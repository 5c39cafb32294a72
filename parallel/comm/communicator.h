#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/tensor.h"

/// Collective operations of the ranks of a process group.
///
/// Every rank of the group calls the same operations in the same order, with the same dtype, counts,
/// reduction and root; exchange() alone concerns only the ranks that it names. Calls of different groups go
/// first in, first out through one queue of the process, so two ranks that share several groups also call
/// these groups in the same relative order. One thread of a rank makes all calls.
///
/// x() returns when its result is there. start_x() returns at once; until its Work is done, the tensors
/// belong to the operation: outputs may be neither read nor written, inputs not written.
///
/// Tensors are contiguous, of any dtype, and may be larger than 2^31 elements. All tensors of a call lie on
/// one device. Tensors of the host travel by MPI, tensors of CUDA devices by NCCL after World::use_nccl()
/// (nccl_group.h), and all others by MPI through copies in host memory (staged_collective.h). Kernels that
/// the host starts after x() or Work::wait() see the result. A host that reads values of a device copies
/// them, which is a wait of its own (core/host_wait.h). host_x() send plain values from host to host, always
/// by MPI, never with a device.
///
/// Parts of a tensor are counted in elements in row-major order, whatever its shape. Unless a function says
/// otherwise, outputs and inputs share no memory. A call that breaks one of these rules throws
/// std::logic_error before anything is sent. An operation that fails on the way (a rank that does not come, a
/// lost connection, calls that differ) throws Error on the ranks that notice, and so does every later
/// operation of the process.
///
/// Reductions by MPI are formed in the order of ranks: ((r0 + r1) + r2) + ... on every element, so all ranks
/// get the same bits, every time. f32 and f64 are added in their own precision, bf16 in f32 and rounded once
/// at the end; integers wrap around. max and min of floats are NaN where an operand is NaN.
namespace nemocube {

enum class Reduction : std::uint8_t { sum, max, min };
enum class Operation : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  all_to_all,
  exchange,
  barrier
};
constexpr std::size_t operation_count = 7;
std::string_view name_of(Reduction reduction);
std::string_view name_of(Operation operation);

/// Statistics of one operation in one group so far, on this rank.
///
/// Nobody on the host waits for NCCL. Its seconds are taken on the device while cuda::time_zones()
/// wants times, and come with World::wait_for_collectives(). Calls in a CUDA graph have no
/// seconds: only the whole graph has a time.
struct CommStats {
  std::int64_t calls = 0;
  std::int64_t bytes_sent = 0;  ///< payload for other ranks
  /// From the moment a call leaves the queue to its end; by NCCL, from the moment the device's stream comes
  /// to it.
  double seconds = 0;
  /// The part of `seconds` in which no message arrived or left. NCCL does not tell it: then 0, though
  /// `seconds` contains such a part.
  double waiting_seconds = 0;
};

/// The statistics of one group. Thread-safe.
class CommTally {
 public:
  void add(Operation operation, const CommStats& more);
  CommStats of(Operation operation) const;

 private:
  mutable std::mutex mutex_;
  std::array<CommStats, operation_count> stats_{};
};

/// A started operation. Holds its tensors until it is done.
class Work {
 public:
  /// A backend's state of a started operation.
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;  ///< rethrows the exception of the operation
    virtual bool done() = 0;
  };

  Work() = default;  ///< done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  /// Waits, so that the tensors are free again. While an exception unwinds the stack nothing is waited for,
  /// since the job is about to end; the queue of the host keeps its tensors.
  ~Work();
  /// Returns when kernels and, for tensors of the host, the host can use the result; throws the operation's
  /// Error if it failed.
  void wait();
  bool done() const { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

struct Send {
  Tensor tensor;
  int to = 0;  ///< rank in the group
};
struct Receive {
  Tensor tensor;
  int from = 0;  ///< rank in the group
};

struct Collective;  // parallel/comm/collective.h

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const { return name_; }  ///< of the group: "dp"
  int rank() const { return rank_; }                 ///< of this process in the group
  int size() const { return static_cast<int>(members_.size()); }
  std::span<const int> members() const { return members_; }  ///< world rank of each rank of the group
  CommStats stats(Operation operation) const { return tally_->of(operation); }
  /// The object behind stats(), for code that executes calls. May outlive the communicator.
  const std::shared_ptr<CommTally>& tally() const { return tally_; }
  /// A communicator of the same ranks with a name, numbers and statistics of its own.
  /// Both use the same group of the message library, so the operations of both are in
  /// one order, which is the same on all ranks.
  virtual std::unique_ptr<Communicator> of_same_ranks(std::string name) const = 0;

  /// inout = reduction of inout over all ranks.
  void all_reduce(const Tensor& inout, Reduction reduction = Reduction::sum);
  [[nodiscard]] Work start_all_reduce(const Tensor& inout, Reduction reduction = Reduction::sum);

  /// out = the `in` of rank 0, 1, ... one after another: out has size() times the elements of in, and every
  /// rank's in has the same number. `in` may be part rank() of out itself.
  void all_gather(const Tensor& out, const Tensor& in);
  [[nodiscard]] Work start_all_gather(const Tensor& out, const Tensor& in);
  /// The same with parts of unequal length: the `in` of rank r has counts[r] elements, 0 included.
  void all_gather_v(const Tensor& out, const Tensor& in, std::span<const std::int64_t> counts);
  [[nodiscard]] Work start_all_gather_v(const Tensor& out, const Tensor& in,
                                        std::span<const std::int64_t> counts);

  /// out = part rank() of the reduction of `in` over all ranks: in has size() times the elements of out.
  /// `out` may be part rank() of in itself; the other parts of in stay as they are.
  void reduce_scatter(const Tensor& out, const Tensor& in, Reduction reduction = Reduction::sum);
  [[nodiscard]] Work start_reduce_scatter(const Tensor& out, const Tensor& in,
                                          Reduction reduction = Reduction::sum);
  /// The same with parts of unequal length: the out of rank r has counts[r] elements, 0 included.
  void reduce_scatter_v(const Tensor& out, const Tensor& in, std::span<const std::int64_t> counts,
                        Reduction reduction = Reduction::sum);
  [[nodiscard]] Work start_reduce_scatter_v(const Tensor& out, const Tensor& in,
                                            std::span<const std::int64_t> counts,
                                            Reduction reduction = Reduction::sum);

  /// inout = the inout of rank `root`.
  void broadcast(const Tensor& inout, int root);

  /// Rows are entries of dimension 0. `in` holds in_rows[r] rows for each rank r, in the order of ranks; out
  /// receives out_rows[r] rows from each rank r. in_rows[b] on rank a equals out_rows[a] on rank b, and rows
  /// have the same number of elements everywhere.
  void all_to_all_v(const Tensor& out, std::span<const std::int64_t> out_rows, const Tensor& in,
                    std::span<const std::int64_t> in_rows);
  [[nodiscard]] Work start_all_to_all_v(const Tensor& out, std::span<const std::int64_t> out_rows,
                                        const Tensor& in, std::span<const std::int64_t> in_rows);

  /// All sends and receives together, as one operation, which ends when all have: two ranks
  /// that send to each other do not deadlock. The n-th send to a rank meets that rank's n-th
  /// receive from here, and has as many bytes. A rank may send to itself, then with the same
  /// dtype. An input may be sent to several ranks.
  void exchange(std::vector<Send> sends, std::vector<Receive> receives);
  [[nodiscard]] Work start_exchange(std::vector<Send> sends, std::vector<Receive> receives);

  // Between hosts. T is a plain value or struct, the same type on every rank.

  /// Entry r is the `own` of rank r.
  template <class T>
  std::vector<T> host_all_gather(const T& own);
  /// The `own` of rank 0, 1, ... one after another. Rank r has counts[r] entries, 0 included.
  template <class T>
  std::vector<T> host_all_gather_v(std::span<const T> own, std::span<const std::int64_t> counts);
  /// inout = reduction of inout over all ranks.
  template <class T>
  void host_all_reduce(std::span<T> inout, Reduction reduction = Reduction::sum);
  template <class T>
  T host_all_reduce(T value, Reduction reduction = Reduction::sum);
  /// inout = the inout of rank `root`.
  template <class T>
  void host_broadcast(std::span<T> inout, int root);
  /// Returns when every rank has called it.
  void host_barrier();

 protected:
  Communicator(std::string name, int rank, std::vector<int> members);
  /// Adds a call that is queued on a device to the statistics: where it is captured (core/cuda/graph.h), with
  /// each launch.
  void count_as_queued(Operation operation, const CommStats& call);

 private:
  virtual void run(Collective call) = 0;
  virtual Work start(Collective call) = 0;

  Collective all_gather_call(const Tensor& out, const Tensor& in, std::vector<std::int64_t> counts);
  Collective reduce_scatter_call(const Tensor& out, const Tensor& in, std::vector<std::int64_t> counts,
                                 Reduction reduction);
  Collective all_reduce_call(const Tensor& inout, Reduction reduction);
  Collective broadcast_call(const Tensor& inout, int root);
  Collective all_to_all_call(const Tensor& out, std::span<const std::int64_t> out_rows, const Tensor& in,
                             std::span<const std::int64_t> in_rows);
  Collective exchange_call(std::vector<Send> sends, std::vector<Receive> receives);
  Collective next(Operation operation);

  std::string name_;
  int rank_;
  std::vector<int> members_;
  std::int64_t collectives_ = 0, exchanges_ = 0;  // called so far
  std::shared_ptr<CommTally> tally_ = std::make_shared<CommTally>();
};

namespace comm_detail {

template <class T>
Tensor values_on_host(std::span<T> values) {
  return Tensor::borrow(const_cast<std::remove_const_t<T>*>(values.data()), {std::ssize(values)},
                        dtype_of<std::remove_const_t<T>>(), nullptr);
}
template <class T>
Tensor bytes_on_host(std::span<T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return values_on_host(
      std::span(reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(T)));
}

}  // namespace comm_detail

template <class T>
std::vector<T> Communicator::host_all_gather(const T& own) {
  std::vector<T> all(static_cast<std::size_t>(size()));
  all_gather(comm_detail::bytes_on_host(std::span(all)), comm_detail::bytes_on_host(std::span(&own, 1)));
  return all;
}

template <class T>
std::vector<T> Communicator::host_all_gather_v(std::span<const T> own, std::span<const std::int64_t> counts) {
  std::int64_t total = 0;
  std::vector<std::int64_t> bytes;
  for (const std::int64_t count : counts) {
    total += count;
    bytes.push_back(count * static_cast<std::int64_t>(sizeof(T)));
  }
  std::vector<T> all(static_cast<std::size_t>(total));
  all_gather_v(comm_detail::bytes_on_host(std::span(all)), comm_detail::bytes_on_host(own), bytes);
  return all;
}

template <class T>
void Communicator::host_all_reduce(std::span<T> inout, Reduction reduction) {
  all_reduce(comm_detail::values_on_host(inout), reduction);
}

template <class T>
T Communicator::host_all_reduce(T value, Reduction reduction) {
  host_all_reduce(std::span(&value, 1), reduction);
  return value;
}

template <class T>
void Communicator::host_broadcast(std::span<T> inout, int root) {
  broadcast(comm_detail::bytes_on_host(inout), root);
}

/// The communicator of a group of one rank. Every operation copies its own part and is done at once.
std::unique_ptr<Communicator> self_communicator(std::string name, int world_rank);

}  // namespace nemocube
