#pragma once
#include <cstdint>
#include <string>

namespace nemocube {

/// The memory that this process can use.
struct MemoryLimit {
  std::int64_t bytes = 0;
  /// The source of the limit: "address space, ulimit -v", "data, ulimit -d", "cgroup", "memory available".
  std::string name;
  std::int64_t used = 0;          ///< what this process uses now of the limit
  bool counts_untouched = false;  ///< memory counts from its reservation on, such as a whole stack
};

/// The smallest of these limits: the limits on address space and data; the limits of this process's cgroups
/// and of the cgroups around them; MemAvailable plus the memory that this process already holds. When the
/// system states none of these, the bytes are the largest 64-bit number and the name is empty. `root` is put
/// before the paths in /proc and /sys, so that tests can use directories of their own.
MemoryLimit memory_limit(const std::string& root = {});

/// "532 kB", "1.50 GB": three digits, powers of 1000.
std::string bytes_text(std::int64_t bytes);

}  // namespace nemocube
