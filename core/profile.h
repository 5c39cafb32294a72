#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "core/trace.h"

/// Time spent in named zones, summed over all threads that enter them, for `nemocube bench step`. Two clock
/// reads for each entry. Where a ZoneWatcher measures, times are of the device, which works
/// through the queue of the zone. While a trace is recorded (core/trace.h), each entry is an
/// operation there, by the clock of the host.
///     static Zone zone("ssd_scan/forward");
///     const ZoneTimer timer(zone);
namespace nemocube {

class Zone {
 public:
  /// `is_operation`: traces show the zone. False where traces show the same work by other
  /// names, as for the passes of a microbatch.
  explicit Zone(const char* name, bool is_operation = true);
  const char* name() const { return name_; }
  bool is_operation() const { return is_operation_; }
  void add(std::int64_t nanoseconds) {
    nanoseconds_.fetch_add(nanoseconds, std::memory_order_relaxed);
    calls_.fetch_add(1, std::memory_order_relaxed);
  }
  std::int64_t nanoseconds() const { return nanoseconds_; }
  std::int64_t calls() const { return calls_; }
  void reset() { nanoseconds_ = calls_ = 0; }

 private:
  const char* name_;
  bool is_operation_;
  std::atomic<std::int64_t> nanoseconds_ = 0, calls_ = 0;
};

/// Called at both ends of a zone, by every thread that enters zones:
/// measures times for a backend with a queue.
class ZoneWatcher {
 public:
  virtual ~ZoneWatcher() = default;
  virtual void enter(Zone& zone) = 0;
  /// Whether the watcher measures the time of the zone, and adds it in collect().
  virtual bool leave(Zone& zone) = 0;
  /// Adds the times of all zones that were left. Waits until these times are known.
  virtual void collect() = 0;
};
/// From now on every zone has this watcher, which is never destroyed.
void watch_zones(ZoneWatcher& watcher);
namespace profile_detail {
inline std::atomic<ZoneWatcher*> watcher = nullptr;
void record(const Zone& zone, std::int64_t begin, std::int64_t duration);  // in a trace
}  // namespace profile_detail

/// The name of the innermost zone that the thread is in, for messages; "none" outside all zones.
const char* current_zone();

class ZoneTimer {
 public:
  explicit ZoneTimer(Zone& zone)
      : zone_(zone),
        outer_(std::exchange(innermost_, &zone)),
        watcher_(profile_detail::watcher.load(std::memory_order_relaxed)),
        start_(std::chrono::steady_clock::now()) {
    if (watcher_) [[unlikely]]
      watcher_->enter(zone);
  }
  ~ZoneTimer() {
    innermost_ = outer_;
    const bool measured = watcher_ && watcher_->leave(zone_);
    const bool traced = trace::recording() && zone_.is_operation();
    if (measured && !traced) [[unlikely]]
      return;
    const std::int64_t begin = trace::nanoseconds(start_), duration = trace::now() - begin;
    if (!measured) zone_.add(duration);
    if (traced) [[unlikely]]
      profile_detail::record(zone_, begin, duration);
  }
  ZoneTimer(const ZoneTimer&) = delete;
  ZoneTimer& operator=(const ZoneTimer&) = delete;

 private:
  friend const char* current_zone();
  static thread_local Zone* innermost_;
  Zone& zone_;
  Zone* outer_;
  ZoneWatcher* watcher_;
  std::chrono::steady_clock::time_point start_;
};

struct ZoneTotal {
  double seconds = 0;
  std::int64_t calls = 0;
};
/// Adds the times of all zones that were left (ZoneWatcher::collect).
void collect_zones();
std::map<std::string, ZoneTotal> zone_totals();  ///< every zone entered at least once since the last reset
void reset_zones();

}  // namespace nemocube
