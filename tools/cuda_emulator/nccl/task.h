#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>
#include <vector>

#include "nccl/communicator.h"

/// What one NCCL call does, and how its data gets through the shared segment.
namespace emulator::nccl {

enum class Kind : std::int32_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  receive
};

/// A call as the program made it.
struct Request {
  Kind kind;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  int type = ncclFloat32;
  int operation = 0;  ///< ncclRedOp_t; pre_multiplied_sum for all made by the program
  int root = 0;       ///< or the peer
  std::uint64_t factor = 0;
  const void* device_factor = nullptr;
  cudaStream_t stream = nullptr;

  bool collective() const { return kind < Kind::send; }
  bool has_root() const;
  bool reduces() const;
  /// "ncclAllReduce"
  const char* name() const;
  /// Bytes that a rank reads at `send` and writes at `receive`.
  std::size_t send_bytes(int rank, int ranks) const;
  std::size_t receive_bytes(int rank, int ranks) const;
};

/// "AllReduce of 10 f32 (sum)"
std::string describe(const Request& request);
std::string describe(const Call& call);

/// Result of an attempt to go on.
struct Progress {
  bool moved = false, done = false;
};

/// A collective on one rank.
class Collective {
 public:
  Collective(Communicator& communicator, const Request& request, const void* send, void* receive);
  /// Publishes and reads what it can. Adds the ranks that it waits for. Throws Failure when the ranks' calls differ.
  Progress advance(std::vector<int>& waits_for);

 private:
  bool publish(std::vector<int>& waits_for);
  bool take(std::vector<int>& waits_for);
  void compare(std::uint64_t piece) const;
  void read_piece(std::uint64_t piece, std::size_t begin, std::size_t size) const;

  Communicator& communicator_;
  const Request request_;
  const std::byte* send_;
  std::byte* receive_;
  Call call_;
  std::uint64_t first_, published_ = 0, taken_ = 0, pieces_;
  std::size_t bytes_, extent_;  ///< of one rank's share; of what a rank publishes
};

/// A send or receive.
class PointToPoint {
 public:
  PointToPoint(Communicator& communicator, const Request& request, const void* send, void* receive);
  Progress advance(std::vector<int>& waits_for);
  const Request& request() const { return request_; }

 private:
  Progress send(std::vector<int>& waits_for);
  Progress receive(std::vector<int>& waits_for);

  Communicator& communicator_;
  const Request request_;
  const std::byte* from_;
  std::byte* to_;
  std::size_t bytes_, moved_ = 0;
  bool header_moved_ = false;
  std::uint64_t end_ = 0;  ///< of the message among all bytes of the ring
};

}  // namespace emulator::nccl
