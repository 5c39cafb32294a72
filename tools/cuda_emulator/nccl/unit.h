#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "nccl/task.h"
#include "nccl/turnstile.h"

namespace emulator::nccl {

/// The calls of one group on one communicator: one operation of a stream. Its collectives run one after the other, its sends and
/// receives all at once.
///
/// Units of a communicator run one at a time in the order of the calls, as NCCL's kernels do. Of all communicators of a device one unit
/// with collectives runs at a time, in the order of the calls: NCCL promises no more, and ranks that call in different orders find
/// themselves in a deadlock, which is reported.
class Unit {
 public:
  /// `captured`: runs whenever its graph does.
  Unit(std::shared_ptr<Communicator> communicator, std::vector<Request> requests, bool captured);
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  /// Takes its place in the order of calls and enters the stream; throws Failure.
  static void enqueue(const std::shared_ptr<Unit>& unit, cudaStream_t stream);

 private:
  int run(unsigned operation);
  void begin(unsigned operation);
  void add_to_timeline() const;
  bool enter();
  bool advance();
  void finish();
  int end_with_error(ncclResult_t error);
  bool blocked();
  std::vector<int> ranks_waited_for() const;
  void publish_wait(const std::vector<Member>& targets);
  void look_for_deadlock();
  std::string what_is_done() const;

  std::shared_ptr<Communicator> communicator_;
  const std::vector<Request> requests_;
  const bool captured_, collective_;
  bool begun_ = false, complete_ = false;
  std::vector<std::pair<const void*, void*>>
      buffers_;  ///< host addresses of each request's send and receive buffer
  std::optional<Collective> current_;
  std::size_t next_collective_ = 0;
  std::vector<PointToPoint> transfers_;
  std::vector<bool> transferred_;

  std::vector<Member> targets_;  ///< what the unit waits for
  std::chrono::steady_clock::time_point last_move_, last_look_, error_seen_;
  bool told_of_wait_ = false;
  struct Seen {
    Member member;
    std::uint32_t version, polls;
  };
  std::vector<Seen> suspected_;  ///< a circle of waiting ranks, when it was first seen
};

}  // namespace emulator::nccl
