#include "core/profile.h"

#include <mutex>
#include <vector>

namespace nemocube {
namespace {
struct Named {
  const char* name;
  Zone* zone;
};
std::mutex zones_mutex;
std::vector<Named>& zones() {
  static auto* list = new std::vector<Named>;
  return *list;
}
}  // namespace

Zone::Zone(const char* name) {
  std::lock_guard lock(zones_mutex);
  zones().push_back({name, this});
}

std::map<std::string, ZoneTotal> zone_totals() {
  std::lock_guard lock(zones_mutex);
  std::map<std::string, ZoneTotal> totals;
  for (const Named& n : zones()) {
    if (n.zone->calls() == 0) continue;
    ZoneTotal& t = totals[n.name];
    t.seconds += static_cast<double>(n.zone->nanoseconds()) * 1e-9;
    t.calls += n.zone->calls();
  }
  return totals;
}

void reset_zones() {
  std::lock_guard lock(zones_mutex);
  for (const Named& n : zones()) n.zone->reset();
}

}  // namespace nemocube
