#include "checks/shared_clocks.h"

#include <algorithm>

namespace emulator {

ThreadTime ThreadClock::of(std::uint32_t thread) const {
  const ThreadTime of_warp = warps[thread / warp_size];
  const auto found = std::lower_bound(singles.begin(), singles.end(), thread,
                                      [](const Single& s, std::uint32_t t) { return s.thread < t; });
  return found != singles.end() && found->thread == thread ? std::max(found->time, of_warp) : of_warp;
}

void ThreadClock::raise(std::uint32_t thread, ThreadTime time) {
  if (time <= warps[thread / warp_size]) return;
  const auto found = std::lower_bound(singles.begin(), singles.end(), thread,
                                      [](const Single& s, std::uint32_t t) { return s.thread < t; });
  if (found != singles.end() && found->thread == thread)
    found->time = std::max(found->time, time);
  else
    singles.insert(found, {thread, time});
}

void ThreadClock::join(const ThreadClock& other) {
  for (std::size_t w = 0; w < warps.size(); ++w) warps[w] = std::max(warps[w], other.warps[w]);
  if (other.singles.empty()) return;
  std::vector<Single> merged;
  merged.reserve(singles.size() + other.singles.size());
  auto a = singles.begin();
  auto b = other.singles.begin();
  while (a != singles.end() || b != other.singles.end()) {
    Single next;
    if (b == other.singles.end() || (a != singles.end() && a->thread < b->thread))
      next = *a++;
    else if (a == singles.end() || b->thread < a->thread)
      next = *b++;
    else
      next = {a->thread, std::max((a++)->time, (b++)->time)};
    if (next.time > warps[next.thread / warp_size]) merged.push_back(next);
  }
  singles = std::move(merged);
}

void ThreadClock::compact(std::uint32_t threads) {
  for (std::size_t k = 0; k < singles.size();) {
    const std::uint32_t warp = singles[k].thread / warp_size;
    const std::uint32_t size = std::min<std::uint32_t>(warp_size, threads - warp * warp_size);
    ThreadTime lowest = ~0u;
    std::size_t end = k;
    for (; end < singles.size() && singles[end].thread / warp_size == warp; ++end)
      lowest = std::min(lowest, singles[end].time);
    if (end - k == size) warps[warp] = std::max(warps[warp], lowest);
    k = end;
  }
  std::erase_if(singles, [&](const Single& s) { return s.time <= warps[s.thread / warp_size]; });
}

bool ThreadClock::empty() const {
  return singles.empty() && std::all_of(warps.begin(), warps.end(), [](ThreadTime t) { return t == 0; });
}

SharedClocks::SharedClocks(std::uint32_t threads)
    : threads_(threads), warps_((threads + warp_size - 1) / warp_size) {
  for (std::uint32_t w = 0; w < warps_.size(); ++w) {
    const std::uint32_t lanes = std::min<std::uint32_t>(warp_size, threads - w * warp_size);
    warps_[w].exists = lanes == warp_size ? all_lanes : (1u << lanes) - 1;
  }
}

bool SharedClocks::before_by_lane(std::uint32_t thread, ThreadTime time, std::uint32_t me) const {
  const WarpClock& mine = warps_[me / warp_size];
  if (mine.lanes && thread / warp_size == me / warp_size &&
      time <= (*mine.lanes)[me % warp_size][thread % warp_size])
    return true;
  return mine.singles && time <= (*mine.singles)[me % warp_size].of(thread);
}

void SharedClocks::advance(WarpClock& warp) {
  if (++warp.now >= latest) exhausted_ = true;
}

void SharedClocks::warp_sync(std::uint32_t index, LaneMask lanes) {
  WarpClock& warp = warps_[index];
  lanes &= warp.exists;
  // Threads that have ended hold nobody up.
  const LaneMask all = lanes | warp.gone;
  if (all == warp.exists) {
    warp.known[index] = warp.now;
  } else {
    if (!warp.lanes) warp.lanes = std::make_unique<LaneTimes>();
    std::array<ThreadTime, warp_size> joined{};
    for_lanes(lanes, [&](int lane) {
      const auto& row = (*warp.lanes)[static_cast<std::size_t>(lane)];
      for (std::size_t k = 0; k < row.size(); ++k) joined[k] = std::max(joined[k], row[k]);
    });
    for_lanes(all, [&](int lane) { joined[static_cast<std::size_t>(lane)] = warp.now; });
    for_lanes(lanes, [&](int lane) { (*warp.lanes)[static_cast<std::size_t>(lane)] = joined; });
  }
  if (warp.singles) {
    ThreadClock joined;
    for_lanes(lanes, [&](int lane) { joined.join((*warp.singles)[static_cast<std::size_t>(lane)]); });
    for_lanes(lanes, [&](int lane) { (*warp.singles)[static_cast<std::size_t>(lane)] = joined; });
  }
  advance(warp);
}

void SharedClocks::arrive(std::uint32_t barrier, std::uint32_t index) {
  WarpClock& warp = warps_[index];
  ThreadClock& clock = barriers_[barrier];
  for (std::size_t w = 0; w < warps_.size(); ++w) clock.warps[w] = std::max(clock.warps[w], warp.known[w]);
  clock.warps[index] = warp.now;
  if (warp.singles)
    for (const ThreadClock& single : *warp.singles) clock.join(single);
  advance(warp);
}

void SharedClocks::complete(std::uint32_t barrier, std::uint32_t waiting, bool all) {
  ThreadClock& clock = barriers_[barrier];
  if (all) clock.join(ended_);
  clock.compact(threads_);
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    if (!(waiting >> w & 1)) continue;
    WarpClock& warp = warps_[w];
    for (std::size_t k = 0; k < warps_.size(); ++k) warp.known[k] = std::max(warp.known[k], clock.warps[k]);
    if (!clock.singles.empty()) {
      if (!warp.singles) warp.singles = std::make_unique<std::array<ThreadClock, warp_size>>();
      for (ThreadClock& single : *warp.singles) single.join(clock);
    } else if (warp.singles) {
      // The barrier has made common what single lanes knew.
      const auto covered = [&](const ThreadClock& single) {
        for (std::size_t k = 0; k < warps_.size(); ++k)
          if (single.warps[k] > warp.known[k]) return false;
        return std::all_of(single.singles.begin(), single.singles.end(),
                           [&](const auto& s) { return s.time <= warp.known[s.thread / warp_size]; });
      };
      if (std::all_of(warp.singles->begin(), warp.singles->end(), covered)) warp.singles.reset();
    }
  }
  clock = {};
}

void SharedClocks::exited(std::uint32_t index, LaneMask lanes) {
  WarpClock& warp = warps_[index];
  warp.gone |= lanes & warp.exists;
  // Until the last lane ends, the warp's own arrivals at barriers speak for those that have ended.
  if (warp.gone == warp.exists) ended_.warps[index] = warp.now;
}

void SharedClocks::release(std::uint64_t object, std::uint32_t thread, ThreadTime until) {
  const std::uint32_t index = thread / warp_size, lane = thread % warp_size;
  WarpClock& warp = warps_[index];
  ThreadClock& clock = objects_[object];
  for (std::size_t w = 0; w < warps_.size(); ++w) clock.warps[w] = std::max(clock.warps[w], warp.known[w]);
  if (warp.lanes)
    for (std::uint32_t k = 0; k < warp_size; ++k) clock.raise(index * warp_size + k, (*warp.lanes)[lane][k]);
  if (warp.singles) clock.join((*warp.singles)[lane]);
  clock.raise(thread, until);
  clock.compact(threads_);
  if (until == warp.now) advance(warp);
}

void SharedClocks::acquire(std::uint64_t object, std::uint32_t thread) {
  const auto found = objects_.find(object);
  if (found == objects_.end()) return;
  WarpClock& warp = warps_[thread / warp_size];
  if (!warp.singles) warp.singles = std::make_unique<std::array<ThreadClock, warp_size>>();
  (*warp.singles)[thread % warp_size].join(found->second);
}

void SharedClocks::restart() {
  for (WarpClock& warp : warps_) {
    const LaneMask exists = warp.exists, gone = warp.gone;
    warp = WarpClock{};
    warp.exists = exists;
    warp.gone = gone;
  }
  barriers_ = {};
  ended_ = {};
  objects_.clear();
  exhausted_ = false;
}

}  // namespace emulator
