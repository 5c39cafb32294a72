#include "nccl/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

#include "runtime/library.h"

namespace emulator::nccl {
namespace {

using std::chrono::steady_clock;

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Communicator>> all;
};
Registry& registry() {
  static auto* const instance =
      new Registry;  // never destroyed: work may end after the library's static objects
  return *instance;
}

/// Ranks whose process ends in order say so, so that others do not take them for dead while nobody needs them.
__attribute__((destructor)) void leave_all() {
  const std::lock_guard lock(registry().mutex);
  for (const auto& weak : registry().all) {
    if (const auto communicator = weak.lock()) communicator->leave(RankState::left);
  }
}

bool alive(const RankArea& area) {
  const std::uint64_t start = process_start(area.pid);
  return start != 0 && start == area.process_start;
}

}  // namespace

Communicator::~Communicator() { leave(RankState::left); }

void Communicator::begin_join(const std::string& segment_name, int ranks, int rank) {
  segment_name_ = segment_name;
  ranks_ = ranks;
  rank_ = rank;
  join();
}

void Communicator::begin_split(std::shared_ptr<Communicator> parent, int color, int key) {
  parent_ = std::move(parent);
  color_ = color;
  key_ = key;
  generation_ = ++parent_->splits_;
  stage_ = Stage::announce;
}

/// The ranks of this communicator that have not yet called ncclCommSplit `generation` times.
std::vector<int> Communicator::not_split(std::uint32_t generation) const {
  std::vector<int> missing;
  for (int r = 0; r < ranks_; ++r) {
    const RankArea& other = area(r);
    const std::uint32_t last = std::max(other.split[0].generation.load(), other.split[1].generation.load());
    if (last < generation) missing.push_back(r);
  }
  return missing;
}

/// Whether all ranks of the parent have called ncclCommSplit `generation` times; throws if one of them never will.
bool Communicator::all_split(std::uint32_t generation) {
  if (parent_->not_split(generation).empty()) return true;
  parent_->watch([&] { return parent_->not_split(generation); });
  const ncclResult_t error = parent_->error();
  if (error != ncclSuccess) throw Failure{error, parent_->message()};
  return false;
}

void Communicator::join() {
  try {
    segment_ = std::make_unique<Segment>(segment_name_, ranks_);
  } catch (const std::runtime_error& error) {
    stage_ = Stage::failed;
    throw Failure{ncclSystemError, error.what()};
  }
  Header& header = segment_->header();
  std::int32_t nobody = 0;
  if (!header.ranks.compare_exchange_strong(nobody, ranks_) && nobody != ranks_) {
    const std::string text = "rank " + std::to_string(rank_) + " joins a communicator of " +
                             std::to_string(ranks_) + " ranks, others one of " + std::to_string(nobody);
    fail(ncclInvalidUsage, text);
    stage_ = Stage::failed;
    throw Failure{ncclInvalidUsage, text};
  }
  RankArea& me = mine();
  RankState absent = RankState::absent;
  me.device = device_;
  if (!me.state.compare_exchange_strong(absent, RankState::joined)) {
    const std::string text = "rank " + std::to_string(rank_) + " joins a communicator twice";
    fail(ncclInvalidUsage, text);
    stage_ = Stage::failed;
    throw Failure{ncclInvalidUsage, text};
  }
  me.process_start = process_start(getpid());
  me.pid = getpid();
  if (++header.joined == ranks_) {
    segment_->unlink();
    header.ready = 1;
  }
  stage_ = Stage::joining;
}

/// The same device of one process in two ranks.
void Communicator::check_devices() const {
  std::map<std::pair<int, int>, int> seen;
  for (int r = 0; r < ranks_; ++r) {
    const auto [place, fresh] = seen.insert({{area(r).pid, area(r).device}, r});
    if (!fresh) {
      throw Failure{ncclInvalidUsage, "ranks " + std::to_string(place->second) + " and " + std::to_string(r) +
                                          " of a communicator use the same device " +
                                          std::to_string(area(r).device.load())};
    }
  }
}

ncclResult_t Communicator::poll() {
  const std::lock_guard lock(poll_mutex_);
  if (aborted_) return ncclInternalError;
  try {
    if (stage_ == Stage::announce) {
      // The slot of the last split but one is free when all have begun the last one.
      if (!all_split(generation_ - 1)) return ncclInProgress;
      RankArea::Split& slot = parent_->mine().split[generation_ % 2];
      slot.color = color_;
      slot.key = key_;
      slot.generation = generation_;
      stage_ = Stage::exchange;
    }
    if (stage_ == Stage::exchange) {
      if (color_ == NCCL_SPLIT_NOCOLOR) {
        parent_.reset();
        stage_ = Stage::none;
        return ncclSuccess;
      }
      if (!all_split(generation_)) return ncclInProgress;
      std::vector<std::pair<int, int>> members;  // key, rank in the parent
      for (int r = 0; r < parent_->ranks_; ++r) {
        const RankArea::Split& slot = parent_->area(r).split[generation_ % 2];
        if (slot.color == color_) members.emplace_back(slot.key, r);
      }
      std::sort(members.begin(), members.end());
      const auto me = std::find(members.begin(), members.end(), std::pair{key_, parent_->rank_});
      segment_name_ =
          parent_->segment_->name() + "_" + std::to_string(generation_) + "_" + std::to_string(color_);
      ranks_ = static_cast<int>(members.size());
      rank_ = static_cast<int>(me - members.begin());
      join();
    }
    if (stage_ == Stage::joining) {
      take_over_error();
      if (error_ != ncclSuccess) throw Failure{static_cast<ncclResult_t>(error_.load()), message()};
      if (!segment_->header().ready) {
        watch([&] {
          std::vector<int> others;
          for (int r = 0; r < ranks_ && !segment_->header().ready; ++r) {
            if (area(r).pid != 0) others.push_back(r);
          }
          return others;
        });
        return ncclInProgress;
      }
      check_devices();
      {
        const std::lock_guard registry_lock(registry().mutex);
        std::erase_if(registry().all, [](const auto& weak) { return weak.expired(); });
        registry().all.push_back(weak_from_this());
      }
      parent_.reset();
      stage_ = Stage::ready;
    }
  } catch (const Failure& failure) {
    stage_ = Stage::failed;
    error_ = failure.result;
    set_message(failure.message);
  }
  if (stage_ == Stage::failed) return static_cast<ncclResult_t>(error_.load());
  return ncclSuccess;
}

std::shared_ptr<Communicator> find_communicator(std::uint64_t hash) {
  const std::lock_guard lock(registry().mutex);
  for (const auto& weak : registry().all) {
    auto communicator = weak.lock();
    if (communicator && communicator->segment().hash() == hash) return communicator;
  }
  return nullptr;
}

ncclResult_t Communicator::error() {
  if (segment_) take_over_error();
  return static_cast<ncclResult_t>(error_.load());
}

void Communicator::take_over_error() {
  const Header& header = segment_->header();
  const int shared = header.error;
  int none = ncclSuccess;
  if (shared == ncclSuccess || error_ != ncclSuccess) return;
  set_message(std::string(header.message, strnlen(header.message, sizeof header.message)));
  error_.compare_exchange_strong(none, shared);
}

void Communicator::fail(ncclResult_t result, const std::string& text) {
  int unclaimed = 0;
  if (segment_->header().error_claimed.compare_exchange_strong(unclaimed, 1)) publish_error(result, text);
  wait_for_error(result, text);
}

void Communicator::fail(const std::vector<std::shared_ptr<Communicator>>& communicators, ncclResult_t result,
                        const std::string& text) {
  // All are claimed before any rank can see one of the errors.
  std::vector<Communicator*> claimed;
  for (const auto& communicator : communicators) {
    int unclaimed = 0;
    if (communicator->segment_->header().error_claimed.compare_exchange_strong(unclaimed, 1))
      claimed.push_back(communicator.get());
  }
  for (Communicator* const communicator : claimed) communicator->publish_error(result, text);
  for (const auto& communicator : communicators) communicator->wait_for_error(result, text);
}

/// The caller has claimed the error.
void Communicator::publish_error(ncclResult_t result, const std::string& text) {
  Header& header = segment_->header();
  const std::size_t size = std::min(text.size(), sizeof header.message - 1);
  std::memcpy(header.message, text.data(), size);
  header.error = result;
}

/// Takes over the error of the rank that was first, as soon as its message is complete; its own if that rank ended before.
void Communicator::wait_for_error(ncclResult_t result, const std::string& text) {
  for (int i = 0; i < 1000 && segment_->header().error == ncclSuccess; ++i) usleep(1000);
  take_over_error();
  if (error_ != ncclSuccess) return;
  int none = ncclSuccess;
  set_message(text);
  error_.compare_exchange_strong(none, result);
}

void Communicator::report_error() {
  const ncclResult_t result = error();
  if (result == ncclSuccess || error_reported_.exchange(true)) return;
  const bool remote = result == ncclRemoteError;
  cuda_emulator_report(remote ? 1 : 0, remote ? "nccl-remote" : "nccl-usage",
                       (message() + " (seen by rank " + std::to_string(rank_) + ")").c_str());
}

std::string Communicator::message() const {
  const std::lock_guard lock(message_mutex_);
  return message_;
}

void Communicator::set_message(const std::string& text) {
  const std::lock_guard lock(message_mutex_);
  message_ = text;
}

void Communicator::watch(const std::function<std::vector<int>()>& waited_for) {
  constexpr std::int64_t pause_ms = 100;
  const std::int64_t now =
      std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now().time_since_epoch()).count();
  std::int64_t last = watched_;
  if (now - last < pause_ms || !watched_.compare_exchange_strong(last, now)) return;
  for (const int r : waited_for()) {
    const std::string gone = r == rank_ ? "" : how_gone(r);
    if (gone.empty()) continue;
    // The rank may have done its part after `waited_for` was asked and before it went.
    const std::vector<int> still = waited_for();
    if (std::find(still.begin(), still.end(), r) != still.end()) return fail(ncclRemoteError, gone);
  }
}

/// What is said of a rank that will do nothing more; empty for all others.
std::string Communicator::how_gone(int rank) const {
  const RankArea& other = area(rank);
  const std::string name = "rank " + std::to_string(rank);
  switch (other.state.load()) {
    case RankState::absent:
      return "";
    case RankState::joined:
      if (other.pid == 0 || alive(other)) return "";
      return name + " (process " + std::to_string(other.pid.load()) + ") has ended";
    case RankState::left:
      return name + " has left the communicator while rank " + std::to_string(rank_) + " waits for it";
    case RankState::aborted:
      return name + " aborted the communicator";
  }
  return "";
}

void Communicator::watch_all() {
  watch([&] {
    std::vector<int> joined;
    for (int r = 0; r < ranks_; ++r) {
      if (area(r).state == RankState::joined) joined.push_back(r);
    }
    return joined;
  });
}

void Communicator::abort() {
  if (ready()) report_error();
  aborted_ = true;
  leave(RankState::aborted);
}

void Communicator::leave(RankState state) {
  if (!segment_) return;
  RankState joined = RankState::joined;
  mine().state.compare_exchange_strong(joined, state);
}

}  // namespace emulator::nccl
