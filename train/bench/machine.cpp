#include "train/bench/machine.h"

#include <omp.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/version.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  std::string line;
  std::ifstream in(file);
  std::getline(in, line);
  return line;
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (const auto colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos)
      return line.substr(colon + 2);
  utsname system{};
  return ::uname(&system) == 0 ? system.machine : "unknown";
}

std::vector<int> usable_cpus() {
  std::vector<int> numbers;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &set)) numbers.push_back(i);
  return numbers;
}

/// "48K", "2M" or "1024" in bytes; 0 for anything else.
std::int64_t parse_size(const std::string& text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || digits > 12) return 0;
  const std::string unit = text.substr(digits);
  const std::int64_t factor = unit.empty() ? 1 : unit == "K" ? 1 << 10 : unit == "M" ? 1 << 20 : 0;
  return factor * std::stoll(text.substr(0, digits));
}

std::string short_bytes(std::int64_t bytes) {
  constexpr std::int64_t mib = 1 << 20;
  return bytes < mib ? cat(bytes / 1024, " KiB") : cat(bytes / mib, " MiB");
}

}  // namespace

std::vector<Cache> read_caches(const fs::path& cpus, const std::vector<int>& numbers, int threads) {
  struct Level {
    std::set<std::string> instances;  // by the CPUs that share one
    std::int64_t bytes = 0;           // of one
  };
  std::map<int, Level> levels;
  for (const int number : numbers)
    for (int index = 0;; ++index) {
      const fs::path dir = cpus / cat("cpu", number) / "cache" / cat("index", index);
      const std::string level = first_line(dir / "level"), type = first_line(dir / "type");
      if (level.empty()) break;
      const std::int64_t bytes = parse_size(first_line(dir / "size"));
      if (level.size() != 1 || type == "Instruction" || bytes == 0) continue;
      Level& l = levels[level[0] - '0'];
      l.instances.insert(first_line(dir / "shared_cpu_list"));
      l.bytes = bytes;
    }
  std::vector<Cache> caches;
  for (const auto& [level, l] : levels)
    caches.push_back({cat("L", level), l.bytes * std::min(static_cast<std::int64_t>(l.instances.size()),
                                                          std::int64_t{threads})});
  return caches;
}

std::string Machine::level_of(std::int64_t bytes) const {
  const auto holds = std::ranges::find_if(caches, [=](const Cache& c) { return bytes <= c.bytes; });
  return holds == caches.end() ? "DRAM" : holds->level;
}

Machine describe_machine() {
  Machine m;
  const std::vector<int> cpus = usable_cpus();
  m.cpu = cpu_model();
  m.cores = static_cast<int>(cpus.size());
  m.threads = omp_get_max_threads();
  m.caches = read_caches("/sys/devices/system/cpu", cpus, m.threads);
  m.memory_bytes = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return m;
}

nlohmann::json to_json(const Machine& m) {
  nlohmann::json caches = nlohmann::json::object();
  for (const Cache& c : m.caches) caches[c.level] = c.bytes;
  return {{"cpu", m.cpu},     {"cores", m.cores},         {"threads", m.threads},
          {"caches", caches}, {"memory", m.memory_bytes}, {"version", version()}};
}

std::string to_string(const Machine& m) {
  std::string text = cat(m.cpu, ", ", m.cores, m.cores == 1 ? " core, " : " cores, ", m.threads,
                         m.threads == 1 ? " thread" : " threads");
  for (const Cache& c : m.caches) text += cat(", ", c.level, " ", short_bytes(c.bytes));
  return text;
}

}  // namespace nemocube
