#pragma once
#include <cstdint>
#include <tuple>
#include <utility>

#include "instructions/form.h"
#include "machine/warp.h"

/// Instructions that compute each lane alone: a function of one lane's values becomes an Execute.
namespace emulator {

/// f: a stateless callable `D f(A...)`. Operands in the order result, sources.
///     return elementwise<std::uint32_t, std::uint32_t, std::uint32_t>([](std::uint32_t a, std::uint32_t b) { return a + b; });
/// A callable that wants the instruction (detail, modifiers) takes `const Instruction&` as its first parameter.
template <class D, class... A, class F>
Execute elementwise(F) {
  static_assert(std::is_empty_v<F>, "elementwise: the callable must be stateless");
  return [](Warp& warp, const Instruction& i, LaneMask lanes) {
    [&]<std::size_t... k>(std::index_sequence<k...>) {
      D* d = warp.result<D>(i, 0);
      const std::tuple<const A*...> rows{warp.source<A>(i, static_cast<int>(k) + 1)...};
      const auto compute = [&](int lane) {
        if constexpr (std::is_invocable_v<F, const Instruction&, A...>) {
          d[lane] = F{}(i, std::get<k>(rows)[lane]...);
        } else {
          d[lane] = F{}(std::get<k>(rows)[lane]...);
        }
      };
      if (lanes == all_lanes) {
        // Rows are equal or disjoint, so that no lane's result is another lane's source.
#pragma GCC ivdep
        for (int lane = 0; lane < warp_size; ++lane) compute(lane);
      } else {
        for_lanes(lanes, compute);
      }
    }
    (std::index_sequence_for<A...>{});
  };
}

/// Calls visit.template operator()<T>() with the C++ type of an integer type (16, 32 or 64 bits; .b as unsigned).
template <class Visit>
Execute for_integer(ptx::Type type, Form& form, Visit visit) {
  using enum ptx::Type;
  switch (type) {
    case u16:
    case b16:
      return visit.template operator()<std::uint16_t>();
    case s16:
      return visit.template operator()<std::int16_t>();
    case u32:
    case b32:
      return visit.template operator()<std::uint32_t>();
    case s32:
      return visit.template operator()<std::int32_t>();
    case u64:
    case b64:
      return visit.template operator()<std::uint64_t>();
    case s64:
      return visit.template operator()<std::int64_t>();
    default:
      form.unknown("no integer type of 16, 32 or 64 bits");
  }
}

}  // namespace emulator
