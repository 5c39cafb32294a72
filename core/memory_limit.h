#pragma once
#include <cstdint>
#include <string>

namespace nemocube {

/// The memory that this process can have.
struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string
      name;  ///< what sets it: "address space, ulimit -v", "data, ulimit -d", "cgroup", "memory available"
};

/// The least of the limits on address space and data, the limits of this process's cgroups and of those
/// around them, and MemAvailable together with what this process already holds. Bytes are the largest 64-bit
/// number and the name is empty where the system states none of them. `root` stands before the paths of
/// /proc and /sys; tests have directories of their own.
MemoryLimit memory_limit(const std::string& root = {});

/// "532 kB", "1.50 GB": three digits, powers of 1000.
std::string bytes_text(std::int64_t bytes);

}  // namespace nemocube
