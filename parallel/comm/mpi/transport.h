#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// The functions of a message library that communicators need. mpi_transport.cpp is the one file that knows
/// MPI; it is a module of its own, nemocube_mpi.so.
namespace nemocube {

/// Messages::poll() and receive() throw this for a message that is not the one that the receiver wants.
struct WrongMessage {
  int peer = 0;                       ///< rank in the group
  std::int64_t wanted = 0, sent = 0;  ///< bytes
};

/// A batch of messages on their way between this rank and others of its group. The n-th message from one rank
/// to another meets the n-th receive there, across batches. Both ends give a message the same number of bytes
/// and the same tag, from 0 to largest_tag. Where bytes or tag differ, the message is not received: no
/// message ever writes beyond the memory of its receiver.
class Messages {
 public:
  struct Message {
    int peer = 0;  ///< rank in the group
    std::int64_t bytes = 0;
    bool incoming = false;
    bool done = false;
  };
  /// Messages that are still on their way are given up, and the group is of no use any more.
  virtual ~Messages() = default;
  /// `data` stays as it is until the message is done. bytes <= 2^31 - 1.
  virtual void send(const void* data, std::int64_t bytes, int to, int tag) = 0;
  virtual void receive(void* data, std::int64_t bytes, int from, int tag) = 0;
  /// Moves messages along and returns how many became done by that. Throws Error for a lost connection.
  virtual int poll() = 0;
  const std::vector<Message>& all() const { return messages_; }

 protected:
  std::vector<Message> messages_;
};

/// The ranks of a group, as the library knows them.
class MessageGroup {
 public:
  virtual ~MessageGroup() = default;
  virtual std::unique_ptr<Messages> messages() const = 0;
  virtual int rank() const = 0;
  virtual std::vector<int> members() const = 0;  ///< world ranks in the order of the group
};

/// The library between its start and its end, which every rank of the job calls together.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Divides all ranks: ranks of one colour form a group, ordered by key; null for colour < 0.
  virtual std::unique_ptr<MessageGroup> split(int colour, int key) = 0;
  /// The ranks that share this rank's memory.
  virtual std::unique_ptr<MessageGroup> host() = 0;
  virtual std::string library() const = 0;         ///< "Open MPI v4.1.4"
  virtual void finish() = 0;                       ///< the last call of a job without failure
  virtual void abort(int exit_code) noexcept = 0;  ///< ends all ranks
};

constexpr int largest_tag = 32767;  ///< the largest that every MPI has

/// Loads the module and starts MPI. Throws Error when the module or MPI itself is not there, or when MPI does
/// not allow calls from changing threads.
std::unique_ptr<Transport> mpi_transport();
/// In the module: the same without loading.
extern "C" Transport* nemocube_start_mpi();

}  // namespace nemocube
