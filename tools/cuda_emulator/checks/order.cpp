#include "checks/order.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace emulator {
namespace {

/// A clock that does not change any more: sorted by stream.
using Times = std::vector<std::pair<StreamKey, std::uint32_t>>;

constexpr StreamKey several = ~StreamKey{0};  ///< in Operation::stream: the operation stands for `members`

struct Operation {
  StreamKey stream = 0;
  StreamKey shown = 0;  ///< in messages
  std::uint32_t tick = 0;
  std::shared_ptr<const Times>
      known;  ///< ticks of the other streams; shared by operations that know the same
  std::shared_ptr<const std::vector<OperationId>> members;
  std::atomic<const std::string*> text{nullptr};
};

}  // namespace

void join(Clock& into, const Clock& other) {
  for (const auto& [stream, tick] : other) {
    std::uint32_t& mine = into[stream];
    mine = std::max(mine, tick);
  }
}

struct OperationOrder::State {
  static constexpr std::uint32_t chunk = 4096;
  std::mutex mutex;
  std::array<std::atomic<Operation*>, 1 << 16> chunks{};
  OperationId count = 0;
  std::unordered_map<StreamKey, std::pair<std::uint32_t, std::shared_ptr<const Times>>>
      streams;  ///< last tick and what it knew
  std::unordered_set<std::string> texts;
  std::map<std::pair<OperationId, OperationId>, OperationId> pairs;

  Operation& at(OperationId id) const {
    return chunks[id / chunk].load(std::memory_order_acquire)[id % chunk];
  }
  /// The caller holds the mutex.
  OperationId make() {
    const OperationId id = ++count;
    if (id / chunk >= chunks.size()) throw std::runtime_error("more than 268 million operations");
    if (!chunks[id / chunk].load()) chunks[id / chunk].store(new Operation[chunk], std::memory_order_release);
    return id;
  }
  const std::string* intern(std::string text) { return &*texts.insert(std::move(text)).first; }
};

OperationOrder& OperationOrder::instance() {
  static OperationOrder* const order =
      new OperationOrder;  // never destroyed: reports are made until the process ends
  return *order;
}

OperationOrder::OperationOrder() : state_(std::make_unique<State>()) { state_->make(); }

OperationId OperationOrder::add(StreamKey stream, Clock& clock, const char* what, StreamKey shown) {
  std::lock_guard lock(state_->mutex);
  const OperationId id = state_->make();
  Operation& o = state_->at(id);
  auto& [last, known] = state_->streams[stream];
  o.stream = stream;
  o.shown = shown ? shown : stream;
  o.tick = ++last;
  clock[stream] = o.tick;
  Times times;
  for (const auto& entry : clock) {
    if (entry.first != stream) times.push_back(entry);
  }
  if (!known || *known != times) known = std::make_shared<const Times>(std::move(times));
  o.known = known;
  o.text = state_->intern(what);
  return id;
}

bool OperationOrder::before(OperationId first, OperationId second) const {
  if (first == 0 || first == second) return true;
  if (second == 0) return false;
  const Operation& a = state_->at(first);
  if (a.stream == several) {
    return std::ranges::all_of(*a.members, [&](OperationId member) { return before(member, second); });
  }
  const Operation& b = state_->at(second);
  if (a.stream == b.stream) return a.tick <= b.tick;
  if (!b.known) return false;  // `second` stands for several operations, of which nobody should ask this
  const auto it = std::ranges::lower_bound(*b.known, a.stream, {}, &Times::value_type::first);
  return it != b.known->end() && it->first == a.stream && it->second >= a.tick;
}

OperationId OperationOrder::both(OperationId first, OperationId second) {
  if (before(first, second)) return second;
  if (before(second, first)) return first;
  std::lock_guard lock(state_->mutex);
  OperationId& known = state_->pairs[{first, second}];
  if (known) return known;
  std::vector<OperationId> members{second};
  if (const Operation& a = state_->at(first); a.stream == several) {
    for (const OperationId m : *a.members) {
      if (m == second) return known = first;
      if (!before(m, second)) members.push_back(m);
    }
  } else {
    members.push_back(first);
  }
  std::ranges::sort(members);
  const OperationId id = state_->make();
  Operation& o = state_->at(id);
  o.stream = several;
  o.members = std::make_shared<const std::vector<OperationId>>(std::move(members));
  return known = id;
}

StreamKey OperationOrder::stream_of(OperationId id) const { return state_->at(id).stream; }

std::string OperationOrder::describe(OperationId id) const {
  if (id == 0) return "the start of the program";
  const Operation& o = state_->at(id);
  if (o.stream == several) {
    std::string text;
    for (const OperationId member : *o.members) text += (text.empty() ? "" : " and ") + describe(member);
    return text;
  }
  return *o.text.load() + (o.stream == 0 ? " by the host" : " in stream " + std::to_string(o.shown));
}

void OperationOrder::set_description(OperationId id, std::string text) {
  std::lock_guard lock(state_->mutex);
  state_->at(id).text = state_->intern(std::move(text));
}

}  // namespace emulator
