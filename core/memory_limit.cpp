#include "core/memory_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iomanip>
#include <limits>
#include <sstream>
#include <string_view>

#include "core/error.h"

namespace nemocube {
namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

void lower(MemoryLimit& limit, const MemoryLimit& other) {
  if (other.bytes < limit.bytes) limit = other;
}

/// Bytes that this process holds.
struct Held {
  std::int64_t address_space = 0, resident = 0, data = 0;
};

Held held(const std::string& root) {
  std::int64_t all = 0, resident = 0, shared = 0, text = 0, unused = 0, data = 0;
  std::ifstream(root + "/proc/self/statm") >> all >> resident >> shared >> text >> unused >> data;
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  return {all * page, resident * page, data * page};
}

std::int64_t limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

// The number in a file; `unlimited` when the file holds "max" or no number, or does not exist.
std::int64_t number_in(const std::string& path) {
  std::int64_t value = 0;
  return std::ifstream(path) >> value ? value : unlimited;
}

// The smallest limit of a cgroup and of all its parents.
std::int64_t least_upwards(const std::string& root, std::string group, const char* file) {
  std::int64_t least = unlimited;
  while (true) {
    least = std::min(least, number_in(root + group + "/" + file));
    const auto slash = group.rfind('/');
    if (slash == std::string::npos) return least;
    group.resize(slash);
  }
}

// Lines are "0::/path" for version 2 and "4:memory:/path" for version 1.
std::int64_t cgroups(const std::string& root) {
  std::int64_t least = unlimited;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = cat(",", line.substr(first + 1, second - first - 1), ",");
    const std::string group = line.substr(second + 1);
    if (controllers == ",,")
      least = std::min(least, least_upwards(root + "/sys/fs/cgroup", group, "memory.max"));
    else if (controllers.find(",memory,") != std::string::npos)
      least = std::min(least, least_upwards(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
  }
  return least;
}

// The memory that the system can still give away, plus the memory that this process already holds.
std::int64_t available(const std::string& root, std::int64_t resident) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    std::int64_t kib = 0;
    if (words >> key >> kib && key == "MemAvailable:") return kib * 1024 + resident;
  }
  return unlimited;
}

}  // namespace

MemoryLimit memory_limit(const std::string& root) {
  const Held now = held(root);
  MemoryLimit limit{unlimited, "", now.resident};
  lower(limit, {limit_of(RLIMIT_AS), "address space, ulimit -v", now.address_space, true});
  lower(limit, {limit_of(RLIMIT_DATA), "data, ulimit -d", now.data, true});
  lower(limit, {cgroups(root), "cgroup", now.resident});
  lower(limit, {available(root, now.resident), "memory available", now.resident});
  return limit;
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<std::string_view, 6> units{"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  std::ostringstream out;
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  out << std::fixed << std::setprecision(decimals) << value << ' ' << units[unit];
  return std::move(out).str();
}

}  // namespace nemocube
