#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

namespace nemocube {

struct MachineMemory {
  std::int64_t bytes = 0;
  std::string limit;  ///< what sets it, such as "MemAvailable" or "ulimit -v"
};

/// The most memory that this process can expect to get: the least of MemAvailable in /proc/meminfo, the limits
/// of its control group and of those around it (version 1 or 2), and the limits on address space and data
/// (ulimit -v, ulimit -d). What cannot be read limits nothing. `root` stands in for / in tests.
MachineMemory machine_memory(const std::filesystem::path& root = "/");

}  // namespace nemocube
