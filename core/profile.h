#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

/// Time spent in named zones, summed over all threads that enter them, for `nemocube bench step`. Two clock
/// reads for each entry.
///     static Zone zone("ssd_scan/forward");
///     const ZoneTimer timer(zone);
namespace nemocube {

class Zone {
 public:
  explicit Zone(const char* name);
  const char* name() const { return name_; }
  void add(std::int64_t nanoseconds) {
    nanoseconds_.fetch_add(nanoseconds, std::memory_order_relaxed);
    calls_.fetch_add(1, std::memory_order_relaxed);
  }
  std::int64_t nanoseconds() const { return nanoseconds_; }
  std::int64_t calls() const { return calls_; }
  void reset() { nanoseconds_ = calls_ = 0; }

 private:
  const char* name_;
  std::atomic<std::int64_t> nanoseconds_ = 0, calls_ = 0;
};

/// The name of the innermost zone that the thread is in, for messages; "none" outside all zones.
const char* current_zone();

class ZoneTimer {
 public:
  explicit ZoneTimer(Zone& zone)
      : zone_(zone), outer_(std::exchange(innermost_, &zone)), start_(std::chrono::steady_clock::now()) {}
  ~ZoneTimer() {
    innermost_ = outer_;
    zone_.add(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_)
                  .count());
  }
  ZoneTimer(const ZoneTimer&) = delete;
  ZoneTimer& operator=(const ZoneTimer&) = delete;

 private:
  friend const char* current_zone();
  static thread_local Zone* innermost_;
  Zone& zone_;
  Zone* outer_;
  std::chrono::steady_clock::time_point start_;
};

struct ZoneTotal {
  double seconds = 0;
  std::int64_t calls = 0;
};
std::map<std::string, ZoneTotal> zone_totals();  ///< every zone entered at least once since the last reset
void reset_zones();

}  // namespace nemocube
