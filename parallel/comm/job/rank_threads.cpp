#include "parallel/comm/job/rank_threads.h"

#include <algorithm>

namespace nemocube {

int rank_threads(std::span<const cpu_set_t> bindings, std::size_t rank) {
  double cpus = 0;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &bindings[rank])) continue;
    const auto users =
        std::ranges::count_if(bindings, [&](const cpu_set_t& set) { return CPU_ISSET(cpu, &set); });
    cpus += 1.0 / static_cast<double>(users);
  }
  return std::max(1, static_cast<int>(cpus + 1e-6));  // thirds of CPUs do not add up exactly
}

}  // namespace nemocube
