#include "train/run/start_times.h"

#include <unistd.h>
#include <ctime>

#include <algorithm>
#include <array>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <sstream>
#include <utility>

#include "core/profile.h"

namespace nemocube {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 7> parts{{{"start/mpi", "MPI"},
                                                                    {"start/devices", "devices"},
                                                                    {"start/groups", "groups"},
                                                                    {"start/weights", "weights"},
                                                                    {"start/data", "data"},
                                                                    {"start/checkpoint", "checkpoint"},
                                                                    {"start/first step", "first step"}}};

/// Seconds since this process started, to a hundredth; 0 where /proc does not say.
double process_age() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The name in parentheses may hold anything. Field 22 is the start in ticks since boot (proc(5)), and 3
  // follows the name.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  timespec now{};
  if (!fields || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         std::stod(field) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

std::string start_text(Communicator* group) {
  std::array<double, parts.size() + 1> seconds{};
  const auto zones = zone_totals();
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (const auto zone = zones.find(parts[i].first); zone != zones.end()) seconds[i] = zone->second.seconds;
  seconds.back() = process_age();
  if (group)
    for (const auto& of_rank : group->host_all_gather(seconds))
      for (std::size_t i = 0; i < seconds.size(); ++i) seconds[i] = std::max(seconds[i], of_rank[i]);
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << "the start took " << seconds.back() << " s";
  const char* between = ": ";
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (seconds[i] >= 0.005) text << std::exchange(between, ", ") << parts[i].second << ' ' << seconds[i];
  return text.str();
}

}  // namespace nemocube
