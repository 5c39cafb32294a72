#include <doctest/doctest.h>

#include <vector>

#include "parallel/comm/job/rank_threads.h"

using namespace nemocube;

namespace {

cpu_set_t cpus(int first, int last) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu = first; cpu <= last; ++cpu) CPU_SET(static_cast<std::size_t>(cpu), &set);
  return set;
}

}  // namespace

TEST_CASE("rank threads: CPUs of a rank's own count whole, shared ones are divided") {
  const std::vector<cpu_set_t> unbound(3, cpus(0, 11));
  CHECK(rank_threads(unbound, 2) == 4);
  const std::vector<cpu_set_t> per_core{cpus(0, 0), cpus(1, 1)};
  CHECK(rank_threads(per_core, 1) == 1);
  const std::vector<cpu_set_t> sockets{cpus(0, 7), cpus(0, 7),
                                       cpus(8, 15)};  // two ranks on one, one on the other
  CHECK(rank_threads(sockets, 0) == 4);
  CHECK(rank_threads(sockets, 2) == 8);
  const std::vector<cpu_set_t> crowded(8, cpus(0, 1));
  CHECK(rank_threads(crowded, 5) == 1);
}
