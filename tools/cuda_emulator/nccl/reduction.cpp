#include "nccl/reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "instructions/float8.h"

namespace emulator::nccl {
namespace {

struct Half {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};
struct E4m3 {
  std::uint8_t bits;
};
struct E5m2 {
  std::uint8_t bits;
};

float widen(Half x) { return half_to_float(x.bits); }
float widen(Bfloat16 x) { return bfloat_to_float(x.bits); }
float widen(E4m3 x) { return half_to_float(e4m3_to_half(x.bits)); }
float widen(E5m2 x) { return half_to_float(e5m2_to_half(x.bits)); }
template <class T>
requires std::is_arithmetic_v<T> T widen(T x) { return x; }

/// The type in which values of T are accumulated.
template <class T>
using Wide = decltype(widen(T{}));

template <class T>
T narrow(Wide<T> x) {
  if constexpr (std::is_same_v<T, Half>) {
    return {float_to_half(x)};
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return {float_to_bfloat(x)};
  } else if constexpr (std::is_same_v<T, E4m3>) {
    return {float_to_e4m3(x)};
  } else if constexpr (std::is_same_v<T, E5m2>) {
    return {float_to_e5m2(x)};
  } else {
    return x;
  }
}

/// Arithmetic that wraps for signed integers, too.
template <class W, class F>
W wrapping(W a, W b, F f) {
  if constexpr (std::is_integral_v<W>) {
    using U = std::common_type_t<std::make_unsigned_t<W>, unsigned>;
    return static_cast<W>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

template <class W>
W combine(int operation, W a, W b) {
  switch (operation) {
    case ncclProd:
      return wrapping(a, b, [](auto x, auto y) { return x * y; });
    case ncclMax:
      if constexpr (std::is_floating_point_v<W>) return std::fmax(a, b);
      return std::max(a, b);
    case ncclMin:
      if constexpr (std::is_floating_point_v<W>) return std::fmin(a, b);
      return std::min(a, b);
    default:
      return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
}

/// Holds the number of ranks, and the quotient of a W by it.
template <class W>
using Divisor = std::conditional_t<std::is_floating_point_v<W>, W,
                                   std::conditional_t<std::is_signed_v<W>, std::int64_t, std::uint64_t>>;

template <class T, int operation>
void reduce_as(std::span<const std::byte* const> inputs, std::span<const std::uint64_t> factors,
               std::byte* to, std::size_t count) {
  using W = Wide<T>;
  constexpr std::size_t chunk = 1024;
  W sums[chunk];
  const auto value = [](const std::byte* data, std::size_t i) {
    T element;
    std::memcpy(&element, data + i * sizeof(T), sizeof(T));
    return widen(element);
  };
  for (std::size_t begin = 0; begin < count; begin += chunk) {
    const std::size_t size = std::min(chunk, count - begin);
    for (std::size_t r = 0; r < inputs.size(); ++r) {
      const std::byte* const data = inputs[r] + begin * sizeof(T);
      W factor{};
      if constexpr (operation == pre_multiplied_sum) {
        T element;
        std::memcpy(&element, &factors[r], sizeof(T));
        factor = widen(element);
      }
      for (std::size_t i = 0; i < size; ++i) {
        W x = value(data, i);
        if constexpr (operation == pre_multiplied_sum) x = combine<W>(ncclProd, x, factor);
        sums[i] = r == 0 ? x : combine<W>(operation, sums[i], x);
      }
    }
    for (std::size_t i = 0; i < size; ++i) {
      W x = sums[i];
      if constexpr (operation == ncclAvg) x = static_cast<W>(x / static_cast<Divisor<W>>(inputs.size()));
      const T element = narrow<T>(x);
      std::memcpy(to + (begin + i) * sizeof(T), &element, sizeof(T));
    }
  }
}

template <class T>
void reduce_type(int operation, std::span<const std::byte* const> inputs,
                 std::span<const std::uint64_t> factors, std::byte* to, std::size_t count) {
  switch (operation) {
    case ncclSum:
      return reduce_as<T, ncclSum>(inputs, factors, to, count);
    case ncclProd:
      return reduce_as<T, ncclProd>(inputs, factors, to, count);
    case ncclMax:
      return reduce_as<T, ncclMax>(inputs, factors, to, count);
    case ncclMin:
      return reduce_as<T, ncclMin>(inputs, factors, to, count);
    case ncclAvg:
      return reduce_as<T, ncclAvg>(inputs, factors, to, count);
    default:
      return reduce_as<T, pre_multiplied_sum>(inputs, factors, to, count);
  }
}

}  // namespace

std::size_t type_bytes(int type) {
  constexpr std::size_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type < 0 || type >= ncclNumTypes ? 0 : bytes[type];
}

const char* type_name(int type) {
  constexpr const char* names[ncclNumTypes] = {"i8",  "u8",  "i32", "u32",  "i64",  "u64",
                                               "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};
  return type < 0 || type >= ncclNumTypes ? "?" : names[type];
}

const char* operation_name(int operation) {
  constexpr const char* names[] = {"sum", "prod", "max", "min", "avg", "premulsum"};
  return operation < 0 || operation > pre_multiplied_sum ? "?" : names[operation];
}

void reduce(int type, int operation, std::span<const std::byte* const> inputs,
            std::span<const std::uint64_t> factors, std::byte* to, std::size_t count) {
  switch (type) {
    case ncclInt8:
      return reduce_type<std::int8_t>(operation, inputs, factors, to, count);
    case ncclUint8:
      return reduce_type<std::uint8_t>(operation, inputs, factors, to, count);
    case ncclInt32:
      return reduce_type<std::int32_t>(operation, inputs, factors, to, count);
    case ncclUint32:
      return reduce_type<std::uint32_t>(operation, inputs, factors, to, count);
    case ncclInt64:
      return reduce_type<std::int64_t>(operation, inputs, factors, to, count);
    case ncclUint64:
      return reduce_type<std::uint64_t>(operation, inputs, factors, to, count);
    case ncclFloat16:
      return reduce_type<Half>(operation, inputs, factors, to, count);
    case ncclFloat32:
      return reduce_type<float>(operation, inputs, factors, to, count);
    case ncclFloat64:
      return reduce_type<double>(operation, inputs, factors, to, count);
    case ncclBfloat16:
      return reduce_type<Bfloat16>(operation, inputs, factors, to, count);
    case ncclFloat8e4m3:
      return reduce_type<E4m3>(operation, inputs, factors, to, count);
    default:
      return reduce_type<E5m2>(operation, inputs, factors, to, count);
  }
}

}  // namespace emulator::nccl
