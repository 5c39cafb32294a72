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

const char* current_zone() { return ZoneTimer::innermost_ ? ZoneTimer::innermost_->name() : "none"; }

Zone::Zone(const char* name) : name_(name) {
  std::lock_guard lock(zones_mutex);
  zones().push_back(this);
}

std::map<std::string, ZoneTotal> zone_totals() {
  if (ZoneWatcher* const watcher = profile_detail::watcher) watcher->collect();
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
  if (ZoneWatcher* const watcher = profile_detail::watcher) watcher->collect();
  std::lock_guard lock(zones_mutex);
  for (Zone* zone : zones()) zone->reset();
}

}  // namespace nemocube
