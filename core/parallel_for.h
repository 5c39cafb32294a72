#pragma once
#include <omp.h>

#include <cstdint>
#include <exception>

namespace nemocube {

/// Calls fn(begin, end) on slices that cover [0, n), on the OpenMP threads; slices hold at least `grain`
/// items, so small work stays on the calling thread. fn must give the same result however [0, n) is cut: sums
/// over the cut dimension belong to fixed segments (see ops/reduce.h), never to threads. Nested calls run on
/// the calling thread. The first exception of any slice is thrown again here.
template <class Fn>
void parallel_for(std::int64_t n, std::int64_t grain, Fn&& fn) {
  if (n <= 0) return;
  const std::int64_t most = grain > 0 ? (n + grain - 1) / grain : n;
  const auto threads = static_cast<int>(most < omp_get_max_threads() ? most : omp_get_max_threads());
  if (threads <= 1 || omp_in_parallel()) {
    fn(std::int64_t{0}, n);
    return;
  }
  std::exception_ptr error;
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t count = omp_get_num_threads(), self = omp_get_thread_num();
    const std::int64_t begin = n * self / count, end = n * (self + 1) / count;
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
