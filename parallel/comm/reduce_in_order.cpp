#include "parallel/comm/reduce_in_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "core/parallel_for.h"

namespace nemocube {
namespace {

constexpr std::int64_t block = 1024;  // sums of a block stay in the nearest cache

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, bf16>, float, T>;

struct Add {
  template <class A>
  static A apply(A a, A b) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};
template <class A>
bool is_nan(A a) {
  if constexpr (std::is_floating_point_v<A>)
    return std::isnan(a);
  else
    return false;
}
// A NaN in a stays; b comes last, so that a NaN there is taken.
struct Max {
  template <class A>
  static A apply(A a, A b) {
    return ((a > b) | is_nan(a)) ? a : b;
  }
};
struct Min {
  template <class A>
  static A apply(A a, A b) {
    return ((a < b) | is_nan(a)) ? a : b;
  }
};

template <class T, class Op>
void reduce_block(std::span<const void* const> sources, T* out, std::int64_t begin, std::int64_t n) {
  std::array<Sum<T>, block> sums;
  const T* first = static_cast<const T*>(sources[0]) + begin;
  for (std::int64_t i = 0; i < n; ++i) sums[static_cast<std::size_t>(i)] = static_cast<Sum<T>>(first[i]);
  for (const void* source : sources.subspan(1)) {
    const T* next = static_cast<const T*>(source) + begin;
    for (std::int64_t i = 0; i < n; ++i) {
      Sum<T>& sum = sums[static_cast<std::size_t>(i)];
      sum = Op::apply(sum, static_cast<Sum<T>>(next[i]));
    }
  }
  for (std::int64_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(sums[static_cast<std::size_t>(i)]);
}

template <class T, class Op>
void reduce(std::span<const void* const> sources, void* out, std::int64_t count) {
  constexpr std::int64_t grain =
      64;  // blocks: below some hundred KiB starting threads costs more than it gains
  parallel_for((count + block - 1) / block, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b)
      reduce_block<T, Op>(sources, static_cast<T*>(out), b * block, std::min(block, count - b * block));
  });
}

}  // namespace

void reduce_in_order(std::span<const void* const> sources, void* out, std::int64_t count, DType dtype,
                     Reduction reduction) {
  visit_any(dtype, [&]<class T>(TypeTag<T>) {
    switch (reduction) {
      case Reduction::sum:
        return reduce<T, Add>(sources, out, count);
      case Reduction::max:
        return reduce<T, Max>(sources, out, count);
      case Reduction::min:
        return reduce<T, Min>(sources, out, count);
    }
  });
}

}  // namespace nemocube
