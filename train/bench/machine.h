#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace nemocube {

/// One level of data caches.
struct Cache {
  std::string level;       ///< "L1"
  std::int64_t bytes = 0;  ///< sum over all instances of the cache that the threads of this program use
};

/// The machine of a benchmark.
struct Machine {
  std::string cpu;                ///< model name, or the architecture where the system names no model
  int cores = 0;                  ///< logical CPUs that this process may use
  int threads = 0;                ///< OpenMP threads
  std::vector<Cache> caches;      ///< nearest first; empty where the system does not say
  std::int64_t memory_bytes = 0;  ///< physical memory; 0: unknown

  /// The nearest cache that holds `bytes`: "L1", "L2", ...; "DRAM" when no cache does.
  std::string level_of(std::int64_t bytes) const;
  std::int64_t largest_cache() const { return caches.empty() ? 0 : caches.back().bytes; }
};

/// Reads /proc and /sys.
Machine describe_machine();

/// Data caches of the logical CPUs `numbers`, as described by the files below `cpus` (normally
/// /sys/devices/system/cpu). The size of a level is the sum over at most `threads` distinct instances.
std::vector<Cache> read_caches(const std::filesystem::path& cpus, const std::vector<int>& numbers,
                               int threads);

/// {"cpu": .., "cores": .., "threads": .., "caches": {"L1": bytes, ..}, "memory": bytes, "version": ..}
nlohmann::json to_json(const Machine& machine);
/// "NAME, 2 cores, 2 threads, L1 96 KiB, L2 4 MiB, L3 32 MiB"
std::string to_string(const Machine& machine);

}  // namespace nemocube
