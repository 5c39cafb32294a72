#pragma once
#include <cstdint>
#include <string>

namespace nemocube {

/// The memory that this process can have.
struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string name;  ///< what sets it: "address space, ulimit -v", "cgroup", "memory available"
};

/// The least of the address space limit, the limits of this process's cgroups and MemAvailable together with
/// what this process already holds. Bytes are the largest 64-bit number and the name is empty where the
/// system states none of them.
MemoryLimit memory_limit();

/// "532 kB", "1.50 GB": three digits, powers of 1000.
std::string bytes_text(std::int64_t bytes);

}  // namespace nemocube
