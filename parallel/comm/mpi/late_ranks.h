#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/comm_engine.h"
#include "parallel/comm/mpi/transport.h"

namespace nemocube {

/// Tells which ranks an operation of devices waits for, because NCCL does not say. Every process counts the
/// operations of each group that its host has begun, and a thread of each process answers by messages whether
/// the host has begun a given one.
class LateRanks {
 public:
  /// All ranks together. `engine` lives longer.
  LateRanks(std::unique_ptr<MessageGroup> all, CommEngine& engine);
  ~LateRanks();
  LateRanks(const LateRanks&) = delete;
  LateRanks& operator=(const LateRanks&) = delete;

  /// This process has come to the next operation of a group. Returns its number, from 1, which is the same on
  /// all ranks of the group. Any thread may call this.
  std::int64_t come(const std::string& group);
  std::vector<int> all() const { return all_->members(); }  ///< world ranks
  /// Answers questions of other ranks, and never waits. Called by one thread,
  /// which no device and no other rank can block.
  void answer();
  /// Asks all other ranks of `members` (world ranks). Waits for `seconds` at most, or until all have
  /// answered. Returns a sentence about the ranks that have not come to operation `number` of the group, and
  /// the ranks that do not answer:
  ///     rank 3 has not come
  ///     rank 3 has not come and does not answer: the process has stopped, or its machine
  ///     all ranks of the group have come
  /// Number 0 only asks who answers. Any thread may call ask(), also while another thread is in answer().
  std::string ask(std::span<const int> members, const std::string& group, std::int64_t number,
                  double seconds);

 private:
  struct Note;
  void receive_from(int rank);
  bool look();  // without waiting long for the transport; false: no chance
  void send(int to, const Note& note);

  CommEngine& engine_;
  std::unique_ptr<MessageGroup> all_;
  const int rank_;

  std::mutex counts_mutex_;
  std::map<std::uint64_t, std::int64_t> counts_;  // by hash of the group's name

  std::mutex mutex_;                    // of the members below
  std::unique_ptr<Messages> messages_;  // one receive for each other rank, and sends under way
  std::vector<Note> arrived_;           // by rank
  std::vector<std::size_t> receive_;    // the number of the rank's receive in messages_
  std::vector<std::unique_ptr<Note>> sent_;
  std::map<int, bool> answers_;  // to the question that is asked now
  std::uint64_t question_ = 0;
  std::int64_t number_ = 0;
};

}  // namespace nemocube
