#include "core/profile.h"

#include <mutex>
#include <vector>

namespace nemocube {
namespace {
std::mutex zones_mutex;
std::vector<Zone*>& zones() {
  static auto* list = new std::vector<Zone*>;
  return *list;
}
}  // namespace

thread_local Zone* ZoneTimer::innermost_ = nullptr;

void watch_zones(ZoneWatcher& watcher) { profile_detail::watcher = &watcher; }

void profile_detail::record(const Zone& zone, std::int64_t begin, std::int64_t duration) {
  trace::record({.name = zone.name(), .begin = begin, .duration = duration});
}

const char* current_zone() { return ZoneTimer::innermost_ ? ZoneTimer::innermost_->name() : "none"; }

void collect_zones() {
  if (ZoneWatcher* const watcher = profile_detail::watcher) watcher->collect();
}

Zone::Zone(const char* name, bool is_operation) : name_(name), is_operation_(is_operation) {
  std::lock_guard lock(zones_mutex);
  zones().push_back(this);
}

std::map<std::string, ZoneTotal> zone_totals() {
  collect_zones();
  std::lock_guard lock(zones_mutex);
  std::map<std::string, ZoneTotal> totals;
  for (const Zone* zone : zones()) {
    if (zone->calls() == 0) continue;
    ZoneTotal& t = totals[zone->name()];
    t.seconds += static_cast<double>(zone->nanoseconds()) * 1e-9;
    t.calls += zone->calls();
  }
  return totals;
}

void reset_zones() {
  collect_zones();
  std::lock_guard lock(zones_mutex);
  for (Zone* zone : zones()) zone->reset();
}

}  // namespace nemocube
