#pragma once
#include <cstdint>

namespace nemocube {

/// Asks for n elements to be brought into the cache. Worth it for short rows a long way apart, which the
/// processor does not foresee.
template <class T>
inline void prefetch(const T* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 64 / static_cast<std::int64_t>(sizeof(T)))
    __builtin_prefetch(from + i, 0, 2);
}

}  // namespace nemocube
