#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace nemocube {

/// Error unless `threads` - 1 threads can be started beside this one. The function starts them as a trial,
/// once for each new largest number: OpenMP itself ends the program when a thread does not start.
void check_threads_start(int threads);

/// Calls fn(begin, end) on slices that cover [0, n), on the OpenMP threads. Slices hold at least `grain`
/// items, so small work stays on the calling thread. fn must give the same result however [0, n) is cut: a
/// sum that crosses slices is formed over fixed segments (see ops/reduce.h), not over slices. Nested calls
/// run on the calling thread. The first exception of any slice is thrown again here.
template <class Fn>
void parallel_for(std::int64_t n, std::int64_t grain, Fn&& fn) {
  if (n <= 0) return;
  const std::int64_t most = grain > 0 ? (n + grain - 1) / grain : n;
  const auto threads = static_cast<int>(most < omp_get_max_threads() ? most : omp_get_max_threads());
  if (threads <= 1 || omp_in_parallel()) {
    fn(std::int64_t{0}, n);
    return;
  }
  const int team = omp_get_max_threads();
  check_threads_start(team);
  std::exception_ptr error;
  // Always the whole team, the last threads perhaps without a slice: for a smaller team libgomp would end the
  // threads that are left over, and start new ones for the next team.
#pragma omp parallel num_threads(team)
  {
    const std::int64_t self = omp_get_thread_num(), count = std::min(threads, omp_get_num_threads());
    const std::int64_t begin = self < count ? n * self / count : n;
    const std::int64_t end = self < count ? n * (self + 1) / count : n;
    try {
      if (begin < end) fn(begin, end);
    } catch (...) {
#pragma omp critical(nemocube_parallel_for)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace nemocube
