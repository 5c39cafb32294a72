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
  std::int64_t bytes = 0;  ///< of all its instances that the threads of this program reach, together
};

/// What a benchmark ran on.
struct Machine {
  std::string cpu;                ///< model name, or the architecture where the system names no model
  int cores = 0;                  ///< logical CPUs that this process may use
  int threads = 0;                ///< OpenMP threads
  std::vector<Cache> caches;      ///< nearest first; empty where the system does not say
  std::int64_t memory_bytes = 0;  ///< physical memory; 0: unknown

  /// The nearest cache that holds so many bytes, "L1", "L2", ...; else "DRAM".
  std::string level_of(std::int64_t bytes) const;
  std::int64_t largest_cache() const { return caches.empty() ? 0 : caches.back().bytes; }
};

/// Reads /proc and /sys.
Machine describe_machine();

/// Data caches as the files below `cpus` (normally /sys/devices/system/cpu) describe them for the logical CPUs
/// `numbers`: sizes of distinct instances added up, and of at most `threads` of them.
std::vector<Cache> read_caches(const std::filesystem::path& cpus, const std::vector<int>& numbers,
                               int threads);

/// {"cpu": .., "cores": .., "threads": .., "caches": {"L1": bytes, ..}, "memory": bytes, "version": ..}
nlohmann::json to_json(const Machine& machine);
/// "NAME, 2 cores, 2 threads, L1 96 KiB, L2 4 MiB, L3 32 MiB"
std::string to_string(const Machine& machine);

}  // namespace nemocube
