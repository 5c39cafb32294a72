#include "train/memory/machine_memory.h"

#include <sys/resource.h>

#include <fstream>
#include <limits>
#include <sstream>

namespace nemocube {
namespace {

namespace fs = std::filesystem;

void lower(MachineMemory& memory, std::int64_t bytes, const std::string& limit) {
  if (bytes < memory.bytes) memory = {bytes, limit};
}

void lower_by_meminfo(MachineMemory& memory, const fs::path& file) {
  std::ifstream in(file);
  std::string key, unit;
  for (std::int64_t kib = 0; in >> key >> kib && std::getline(in, unit);)
    if (key == "MemAvailable:") lower(memory, kib * 1024, "MemAvailable");
}

// A file holds one number, or "max".
void lower_by_group(MachineMemory& memory, const fs::path& file) {
  std::ifstream in(file);
  if (std::int64_t bytes = 0; in >> bytes) lower(memory, bytes, "control group limit");
}

// A line of /proc/self/cgroup is "number:controllers:path", version 2 the one without controllers. In a
// container the path may be that of the host, so the mount itself, the outermost group, is looked at as well.
void lower_by_groups(MachineMemory& memory, const fs::path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string number, controllers, path;
    if (!std::getline(fields, number, ':') || !std::getline(fields, controllers, ':') ||
        !std::getline(fields, path))
      continue;
    const bool second = controllers.empty();
    if (!second && ("," + controllers + ",").find(",memory,") == std::string::npos) continue;
    const fs::path mount = root / (second ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    const char* name = second ? "memory.max" : "memory.limit_in_bytes";
    for (fs::path group = fs::path(path).relative_path(); !group.empty(); group = group.parent_path())
      lower_by_group(memory, mount / group / name);
    lower_by_group(memory, mount / name);
  }
}

void lower_by_limit(MachineMemory& memory, __rlimit_resource resource, const char* name) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < static_cast<rlim_t>(std::numeric_limits<std::int64_t>::max()))
    lower(memory, static_cast<std::int64_t>(limit.rlim_cur), name);
}

}  // namespace

MachineMemory machine_memory(const fs::path& root) {
  MachineMemory memory{std::numeric_limits<std::int64_t>::max(), "nothing"};
  lower_by_meminfo(memory, root / "proc/meminfo");
  lower_by_groups(memory, root);
  lower_by_limit(memory, RLIMIT_AS, "ulimit -v");
  lower_by_limit(memory, RLIMIT_DATA, "ulimit -d");
  return memory;
}

}  // namespace nemocube
