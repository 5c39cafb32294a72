#pragma once
#include <cstdint>

namespace nemocube {

/// Asks the processor to bring n elements into the cache. Worthwhile for short rows that lie far apart,
/// because the processor's own prefetching does not predict them.
template <class T>
inline void prefetch(const T* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 64 / static_cast<std::int64_t>(sizeof(T)))
    __builtin_prefetch(from + i, 0, 2);
}

}  // namespace nemocube
