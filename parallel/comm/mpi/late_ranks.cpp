#include "parallel/comm/mpi/late_ranks.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/error.h"
#include "core/rng.h"

namespace nemocube {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int tag = 1;
constexpr std::int64_t question = 0, has_come = 1, has_not_come = 2;

/// "rank 3", "ranks 1, 2 and 14 more"
std::string text_of(const std::vector<int>& ranks) {
  constexpr std::size_t most = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(most, ranks.size()); ++i) text += cat(i == 0 ? "" : ", ", ranks[i]);
  if (ranks.size() > most) text += cat(" and ", ranks.size() - most, " more");
  return text + (ranks.size() == 1 ? " has" : " have") + " not come";
}

}  // namespace

struct LateRanks::Note {
  std::int64_t kind = question;
  std::uint64_t group = 0;  ///< hash of its name
  std::int64_t number = 0;  ///< of the operation
};

LateRanks::LateRanks(std::unique_ptr<MessageGroup> all, CommEngine& engine)
    : engine_(engine), all_(std::move(all)), rank_(all_->rank()) {
  const std::size_t size = all_->members().size();
  arrived_.resize(size);
  receive_.resize(size);
  const std::lock_guard transport(engine_.transport_mutex);
  messages_ = all_->messages();
  for (std::size_t rank = 0; rank < size; ++rank)
    if (static_cast<int>(rank) != rank_) receive_from(static_cast<int>(rank));
}

LateRanks::~LateRanks() {
  const std::lock_guard transport(engine_.transport_mutex);
  messages_ = nullptr;
}

std::int64_t LateRanks::come(const std::string& group) {
  const std::lock_guard lock(counts_mutex_);
  return ++counts_[hash_name(group)];
}

// The receives of a rank have its notes in the order in which it sends them.
void LateRanks::receive_from(int rank) {
  const auto at = static_cast<std::size_t>(rank);
  receive_[at] = messages_->all().size();
  messages_->receive(&arrived_[at], sizeof(Note), rank, tag);
}

void LateRanks::send(int to, const Note& note) {
  sent_.push_back(std::make_unique<Note>(note));
  messages_->send(sent_.back().get(), sizeof(Note), to, tag);
}

bool LateRanks::look() {
  const std::unique_lock transport(engine_.transport_mutex, 10ms);
  if (!transport.owns_lock()) return false;
  messages_->poll();
  for (int rank = 0; rank < static_cast<int>(arrived_.size()); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (rank == rank_) continue;
    while (messages_->all()[receive_[at]].done) {
      const Note note = arrived_[at];
      receive_from(rank);
      if (note.kind != question) {
        if (note.group == question_ && note.number == number_) answers_[rank] = note.kind == has_come;
        continue;
      }
      const std::lock_guard lock(counts_mutex_);
      const auto count = counts_.find(note.group);
      const bool came = (count == counts_.end() ? 0 : count->second) >= note.number;
      send(rank, {came ? has_come : has_not_come, note.group, note.number});
    }
  }
  return true;
}

void LateRanks::answer() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && !engine_.ending) look();  // whoever asks answers as well
}

std::string LateRanks::ask(std::span<const int> members, const std::string& group, std::int64_t number,
                           double seconds) {
  const std::lock_guard lock(mutex_);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  answers_.clear();
  question_ = hash_name(group);
  number_ = number;
  std::vector<int> others(members.begin(), members.end());
  std::erase(others, rank_);
  bool asked = false;
  while (answers_.size() < others.size() && Clock::now() < end && !engine_.ending) {
    if (!asked) {
      const std::unique_lock transport(engine_.transport_mutex, 100ms);
      if (!transport.owns_lock()) continue;
      for (const int rank : others) send(rank, {question, question_, number});
      asked = true;
    }
    look();
    std::this_thread::sleep_for(1ms);
  }
  std::vector<int> silent, elsewhere;
  for (const int rank : others) {
    const auto found = answers_.find(rank);
    if (found == answers_.end())
      silent.push_back(rank);
    else if (!found->second)
      elsewhere.push_back(rank);
  }
  if (silent.empty() && elsewhere.empty())
    return number > 0 ? "all ranks of the group have come" : "all ranks of the group answer";
  std::string text;
  if (!silent.empty())
    text = cat(text_of(silent), silent.size() == 1
                                    ? " and does not answer: the process has stopped, or its machine"
                                    : " and do not answer: the processes have stopped, or their machines");
  if (!elsewhere.empty()) text += cat(text.empty() ? "" : "; ", text_of(elsewhere));
  return text;
}

}  // namespace nemocube
